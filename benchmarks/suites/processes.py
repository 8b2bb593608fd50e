"""Processes that rows start: where they find this package, their processor time and cores, and compiled programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monolith import environment
from monolith.cli._bench.measurement import RowSkippedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent.parent
"""Folder of the checkout, from which `benchmarks` is imported."""
_SCHEDULED = 2
"""The kind of clock that counts nanoseconds on a processor (CPUCLOCK_SCHED of Linux)."""


def child_environment() -> dict[str, str]:
    """Returns the environment of a child process that imports `benchmarks`, in whatever folder this process runs."""
    path = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment.starting_with(""), "PYTHONPATH": os.pathsep.join(path)}


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


def compile_program(source: Path, folder: Path, *flags: str) -> Path:
    """Compiles a source of this package into a folder and returns the program, named as its source is.

    Raises:
        RowSkippedError: there is no compiler.
    """
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RowSkippedError(f"{source.name} is compiled in the run and no C++ compiler was found; install g++")
    program = folder / source.stem
    # A compiler found on the path and a source of this package.
    subprocess.run([compiler, "-std=c++20", *flags, source, "-o", program], check=True)
    return program
