"""Import of Ray, which places and restarts the processes of a job; only on use."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from monolith import environment

NAMESPACE = "monolith"
"""Default namespace of the named actors of our jobs."""

_OF_OURS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_worker_niceness": "0"}
"""Defaults of Ray that are changed unless the user sets them: usage reports, deduplication of log lines, and a niceness
that schedules every other program before the actors, which here are the job.
"""

_LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for single-machine clusters: with 0 everything that Ray starts listens on loopback only."""


def load_ray(*, loopback_only: bool = False) -> Any:
    """Returns the package. A cluster that this process starts uses the settings above.

    Args:
        loopback_only: Whether a cluster that this process starts serves this machine only. Ray reads this on import.

    Raises:
        ModuleNotFoundError: Ray is not installed; the message names the package to install.
    """
    if "ray" not in sys.modules:
        for name, value in (_OF_OURS | ({_LOOPBACK_ONLY: "0"} if loopback_only else {})).items():
            if environment.get(name) is None:
                environment.put(name, value)
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "jobs on Ray need ray, which is not installed; run: pip install 'monolith-torch[ray]'", name=error.name
        ) from error
