"""Arithmetic benchmark that compares servers: rounds per second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from monolith.errors import AbortedError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_LONGEST_SECONDS = 600.0
_SIDE = 256
"""Side length of the square matrix."""
_PIECES = 16
"""Number of pieces that the matrix is split into, and joined from, in each round."""


def measure_throughput(seconds: float, is_over: Callable[[], bool] = lambda: False) -> float:
    """Computes for some seconds; returns the number of rounds per second.

    Args:
        seconds: Duration.
        is_over: Polled before each round; True cancels the benchmark.

    Raises:
        AbortedError: the benchmark was cancelled.
    """
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise InvalidArgumentError(
            f"benchmark: seconds above 0, and at most {_LONGEST_SECONDS}, expected, got {seconds}"
        )
    matrix = torch.rand(_SIDE, _SIDE)
    rounds, begin = 0, time.monotonic()
    while (elapsed := time.monotonic() - begin) < seconds or rounds == 0:
        if is_over():
            raise AbortedError("benchmark: the server ends; what it has computed is of no use")
        matrix = _round(matrix)
        rounds += 1
    return rounds / max(elapsed, 1e-9)


def _round(matrix: Tensor) -> Tensor:
    """Moves and computes every number once; they stay between 0 and 1."""
    return torch.cat(torch.split(matrix, _SIDE // _PIECES, dim=1)).sqrt().reshape(_SIDE, _SIDE)
