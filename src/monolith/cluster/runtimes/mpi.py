"""The variables of Open MPI, and the end of a job when one of its processes fails."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from monolith import environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_log = logging.getLogger(__name__)


def mpi_rank() -> int | None:
    """Returns the rank of this process in the world, or None where Open MPI did not start it."""
    rank = environment.get("OMPI_COMM_WORLD_RANK")
    return int(rank) if rank else None


def add_mpi_exception_hook() -> None:
    """Makes an uncaught exception abort the MPI job. Does nothing outside MPI. Idempotent.

    The previous hook prints the exception first. Then mpi4py aborts the job if the program has loaded it; otherwise the
    process exits immediately with status 1, upon which ``mpirun`` ends the others. Without this hook the other ranks
    would block in their next collective call forever.
    """
    if mpi_rank() is not None and not isinstance(sys.excepthook, _AbortJob):
        sys.excepthook = _AbortJob(sys.excepthook)


class _AbortJob:
    """The exception hook; a class, so that an installed hook is recognized."""

    def __init__(self, previous: Callable[..., object]) -> None:
        self._previous = previous

    def __call__(self, kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        self._previous(kind, error, at)
        sys.stdout.flush()
        sys.stderr.flush()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None:
            mpi.COMM_WORLD.Abort(1)
        os._exit(1)
