"""Processor time of other processes, by the clock that the kernel keeps for each, and on which cores a row runs."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.cli._bench.skip import RowSkippedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SCHEDULED = 2
"""The kind of clock that counts nanoseconds on a processor (CPUCLOCK_SCHED of Linux)."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """Seconds that these processes, with all their threads, have computed so far.

    Raises:
        RowSkippedError: the system has no such clocks.
    """
    if not sys.platform.startswith("linux"):
        raise RowSkippedError("processor time of servers is read from clocks that only Linux has")
    return sum(time.clock_gettime((~pid << 3) | _SCHEDULED) for pid in pids)


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Restricts this process and its children to `count` cores inside.

    Raises:
        RowSkippedError: there are fewer cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise RowSkippedError("cores are chosen by a call that only Linux has")
    before = os.sched_getaffinity(0)
    if len(before) < count:
        raise RowSkippedError(f"needs {count} cores, this machine gives {len(before)}")
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
