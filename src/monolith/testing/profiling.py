"""Traces of slow tests."""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from monolith.hooks.profiling import make_torch_profiler

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["profile_it"]

_numbers = itertools.count()


def profile_it(function: Callable[P, R], *, folder: str | os.PathLike[str] | None = None) -> Callable[P, R]:
    """Decorates a function to run under torch's profiler; each call writes a trace, also one that raises.

    Traces are ``<folder>/<function>-<process>-<number>.json``, for ``chrome://tracing`` or Perfetto.

    Args:
        function: The function.
        folder: Folder of the traces; by default ``tests_profile`` in the folder for temporary files.
    """
    target = Path(tempfile.gettempdir()) / "tests_profile" if folder is None else Path(folder)

    @functools.wraps(function)
    def profiled(*args: P.args, **kwargs: P.kwargs) -> R:
        profiler = make_torch_profiler()
        profiler.start()
        try:
            return function(*args, **kwargs)
        finally:
            profiler.stop()
            target.mkdir(parents=True, exist_ok=True)
            name = f"{function.__name__}-{os.getpid()}-{next(_numbers)}.json"
            profiler.export_chrome_trace(str(target / name))

    return profiled
