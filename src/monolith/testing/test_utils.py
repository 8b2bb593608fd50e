"""Helpers under the names of ByteDance Monolith's `native_training.test_utils`.

They exist so that tests written for ByteDance Monolith find them; tests of this project rarely need them. The function
`create_test_ps_cluster` and the module `monolith.testing.distributed_binary` have the same purpose.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from monolith import environment
from monolith.hooks import make_torch_profiler
from monolith.tables import Fp16, Fp32, Segment, Sgd, TableConfig, Zeros

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_numbers = itertools.count()


def generate_test_hash_table_config(dim: int = 2, use_float16: bool = False, learning_rate: float = 1.0) -> TableConfig:
    """Returns a config of one segment that starts at zero and learns by SGD: expected weights are easy to compute.

    Args:
        dim: Weights of a row.
        use_float16: Whether serving rows have half precision instead of float32.
        learning_rate: Learning rate of SGD: a gradient g moves a weight by ``-learning_rate * g``.

    >>> generate_test_hash_table_config(dim=4).dim
    4
    """
    segment = Segment(
        dim=dim,
        initializer=Zeros(),
        optimizer=Sgd(learning_rate=learning_rate),
        compressor=Fp16() if use_float16 else Fp32(),
    )
    return TableConfig(segments=[segment])


def get_test_tmp_dir() -> str:
    """Returns the folder for temporary files of tests: ``TEST_TMPDIR``, or ``/tmp``."""
    return environment.get("TEST_TMPDIR") or "/tmp"  # noqa: S108 - the default of ByteDance Monolith


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
