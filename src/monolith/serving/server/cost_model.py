"""How long a model takes for a number of examples, and how long it is waited for: learned, forgetting the past."""

from __future__ import annotations

__all__ = ["CostModel", "WaitSlip"]

_FORGETS = 0.95
"""Share of what was known that stays with each measurement: about the last twenty count."""
_SPREAD = 1e-3
"""Variance of the sizes, against their mean square, from which a slope can be told from a constant."""
_TELLING_SECONDS = 1e-3
"""Wait from which slip is told."""
_DEVIATIONS = 2.0
_MOST_SLIP = 4.0
"""A process that stood still for a while must not refuse everything afterwards."""


class CostModel:
    """Seconds of a call as a constant plus so much an example, by least squares. Not thread safe."""

    def __init__(self) -> None:
        self._count = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._rows_squared = 0.0
        self._product = 0.0
        self._base = 0.0
        self._slope = 0.0
        self._is_fitted = True
        """Whether base and slope are those of what was measured: they are found when somebody asks."""

    def add(self, rows: int, seconds: float) -> None:
        """Takes a measurement of one call."""
        self._count = self._count * _FORGETS + 1.0
        self._rows = self._rows * _FORGETS + rows
        self._seconds = self._seconds * _FORGETS + seconds
        self._rows_squared = self._rows_squared * _FORGETS + rows * rows
        self._product = self._product * _FORGETS + rows * seconds
        self._is_fitted = False

    def seconds(self, rows: int, calls: int = 1) -> float:
        """What so many examples in so many calls will take; 0 before anything was measured."""
        if not self._is_fitted:
            self._fit()
        return self._base * calls + self._slope * rows

    def _fit(self) -> None:
        self._is_fitted = True
        mean_rows, mean_seconds = self._rows / self._count, self._seconds / self._count
        mean_square = self._rows_squared / self._count
        variance = mean_square - mean_rows * mean_rows
        if variance <= _SPREAD * mean_square:  # one size only: what is a constant and what is not cannot be told apart
            self._base, self._slope = 0.0, mean_seconds / mean_rows
            return
        slope = (self._product / self._count - mean_rows * mean_seconds) / variance
        self._slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        self._base = mean_seconds - self._slope * mean_rows


class WaitSlip:
    """How much longer requests wait than the calls before them were thought to take.

    Calls do not follow each other at once: requests are decoded, refused and answered between them, and a process may
    lose its processor. Not thread safe.
    """

    def __init__(self) -> None:
        self._mean = 1.0
        self._deviation = 0.0

    def add(self, expected: float, waited: float) -> None:
        """Takes a measurement of one request, in seconds."""
        if expected < _TELLING_SECONDS:
            return  # a small wait is made of other things
        slip = min(waited / expected, _MOST_SLIP)
        self._deviation += (1 - _FORGETS) * (abs(slip - self._mean) - self._deviation)
        self._mean += (1 - _FORGETS) * (slip - self._mean)

    @property
    def factor(self) -> float:
        """What to multiply an expected wait by, so that nearly nobody waits longer; at least 1."""
        return min(max(1.0, self._mean + _DEVIATIONS * self._deviation), _MOST_SLIP)
