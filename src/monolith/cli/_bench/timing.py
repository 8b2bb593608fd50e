"""Timing of alternating contestants."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
P = ParamSpec("P")

WARM_UP_STEPS = 3
"""Steps before a turn is timed: they bring back what the previous contestant pushed out of the caches."""


class TimedStep(Generic[T]):
    """A step and the batches that it cycles through; each turn continues where the last one ended."""

    def __init__(self, step: Callable[[T], object], batches: Sequence[T]) -> None:
        self._step = step
        self._batches = batches
        self._next = 0

    def _advance(self) -> None:
        self._step(self._batches[self._next])
        self._next = (self._next + 1) % len(self._batches)

    def turn(self, seconds: float) -> float:
        """Steps per second over about `seconds`."""
        for _ in range(WARM_UP_STEPS):
            self._advance()
        steps, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or steps == 0:
            self._advance()
            steps += 1
        return steps / elapsed


def take_turns(contestants: Mapping[str, TimedStep[T]], *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Returns steps per second of every contestant in every round; the order rotates each round."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    with quiet_collector():
        for _ in range(rounds):
            for name in names:
                rates[name].append(contestants[name].turn(seconds))
            names.append(names.pop(0))
    return rates


def timed(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Returns the seconds that one call takes."""
    start = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - start


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection inside: its pauses belong to no contestant."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that `percent` of the values do not exceed, a value that occurred."""
    return float(np.percentile(np.asarray(values), percent, method="higher"))
