"""The arithmetic by which servers are compared: how often a second a machine gets through it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from monolith.errors import AbortedError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["measure_throughput"]

_LONGEST_SECONDS = 600.0
_SIDE = 256
"""Of the square matrix that it works on."""
_PIECES = 16
"""That the matrix is split into, and put together from, in each round."""


def measure_throughput(seconds: float, is_over: Callable[[], bool] = lambda: False) -> float:
    """Computes for some seconds; how many rounds a second there were.

    Args:
        seconds: How long.
        is_over: Asked before each round; True: the result is of no use any more.

    Raises:
        AbortedError: it was over before its time.
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
