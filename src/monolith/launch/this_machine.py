"""Discovery and the secret that the roles of a job on one machine share."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from monolith import environment
from monolith.cluster.discovery import ServiceDiscoveryType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.launch.plan import LaunchPlan

__all__ = ["local_job"]

_THREADS = "OMP_NUM_THREADS"
_LOOPBACK = "127.0.0.1"
_OF_ONE_PROCESS = (ServiceDiscoveryType.PRIMUS, ServiceDiscoveryType.MLP)


@contextlib.contextmanager
def local_job(plan: LaunchPlan) -> Iterator[LaunchPlan]:
    """A context manager for the plan of a job on this machine; given options for host, secret or discovery stay.

    Roles listen on loopback only, share a secret that only this user can read, and write their addresses to a folder of
    the job, which is removed at the end. Workers share the processors.

    Raises:
        ValueError: The discovery service gives the place of one process, and would give all roles the same one.
    """
    options = plan.options
    if options.is_set("discovery_type") and options.discovery_type in _OF_ONE_PROCESS:
        name = options.discovery_type.name.lower()
        raise ValueError(
            f"--discovery_type {name} selects which process of a job this one is; a launcher starts all of them: omit"
            " it, or omit the launcher"
        )
    with _folder() as folder:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(f"{secrets.token_urlsafe(32)}\n", encoding="ascii")
        brought = {"host": _LOOPBACK, "token_file": str(token)}
        if not options.is_set("discovery_type"):
            brought |= {"discovery_type": "host", "discovery_dir": str(folder / "addresses")}
        yield dataclasses.replace(plan.with_options(brought), environment={**_threads(plan), **plan.environment})


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Yields a temporary folder. Only this block removes it, not the exit of a forked process."""
    folder = Path(tempfile.mkdtemp(prefix="monolith-job-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _threads(plan: LaunchPlan) -> dict[str, str]:
    """Divides the processors among the workers, unless configured otherwise: each worker would use all of them."""
    if plan.options.is_set("intra_op_parallelism_threads") or environment.get(_THREADS):
        return {}
    return {_THREADS: str(max(len(os.sched_getaffinity(0)) // plan.options.num_workers, 1))}
