"""How long a model takes for a number of examples: learned from what it took, forgetting what was long ago."""

from __future__ import annotations

__all__ = ["CostModel"]

_FORGETS = 0.95
"""Share of what was known that stays with each measurement: about the last twenty count."""
_SPREAD = 1e-3
"""Variance of the sizes, against their mean square, from which a slope can be told from a constant."""


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

    def add(self, rows: int, seconds: float) -> None:
        """Takes a measurement of one call."""
        self._count = self._count * _FORGETS + 1.0
        self._rows = self._rows * _FORGETS + rows
        self._seconds = self._seconds * _FORGETS + seconds
        self._rows_squared = self._rows_squared * _FORGETS + rows * rows
        self._product = self._product * _FORGETS + rows * seconds
        self._fit()

    def seconds(self, rows: int, calls: int = 1) -> float:
        """What so many examples in so many calls will take; 0 before anything was measured."""
        return self._base * calls + self._slope * rows

    def _fit(self) -> None:
        mean_rows, mean_seconds = self._rows / self._count, self._seconds / self._count
        mean_square = self._rows_squared / self._count
        variance = mean_square - mean_rows * mean_rows
        if variance <= _SPREAD * mean_square:  # one size only: what is a constant and what is not cannot be told apart
            self._base, self._slope = 0.0, mean_seconds / mean_rows
            return
        slope = (self._product / self._count - mean_rows * mean_seconds) / variance
        self._slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        self._base = mean_seconds - self._slope * mean_rows
