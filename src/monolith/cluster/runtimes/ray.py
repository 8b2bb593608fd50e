"""Ray, which places and restarts the processes of a job: imported here, and only when it is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from monolith import environment

__all__ = ["NAMESPACE", "load_ray"]

NAMESPACE = "monolith"
"""Where the named actors of our jobs are, unless a caller says otherwise."""

_OF_OURS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
}
"""What Ray does by itself and we do not want, where nobody says otherwise: it reports usage, drops lines of a log that
look like others, and lets every other program of a machine go before its actors, which here are the job."""

_LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for machines that are to serve nobody else: with 0 everything it starts listens on loopback alone."""


def load_ray(*, loopback_only: bool = False) -> Any:
    """The package; a cluster that this process starts reports no usage, and gives its actors the usual priority.

    Args:
        loopback_only: A cluster that this process starts is for this machine. Ray looks at this when it is imported.

    Raises:
        ModuleNotFoundError: It is not installed; says what to install.
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
