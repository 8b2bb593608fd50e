"""Estimates the time of a model call for a number of examples, and the wait for it, from recent measurements."""

from __future__ import annotations

__all__ = ["CostModel", "WaitSlip"]

_FORGETS = 0.95
"""Decay of earlier measurements with each new one: about the last twenty count."""
_SPREAD = 1e-3
"""Minimum variance of the sizes, relative to their mean square, for which slope and constant can be separated."""
_TELLING_SECONDS = 1e-3
"""Minimum expected wait for which slip is measured."""
_DEVIATIONS = 2.0
_MOST_SLIP = 4.0
"""Bound of the slip: a process that was suspended must not reject everything afterwards."""


class CostModel:
    """Seconds of a call as a constant plus a cost per example, by least squares. Not thread-safe."""

    def __init__(self) -> None:
        self._count = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._rows_squared = 0.0
        self._product = 0.0
        self._base = 0.0
        self._slope = 0.0
        self._is_fitted = True
        """Whether base and slope are up to date; they are fitted lazily."""

    def add(self, rows: int, seconds: float) -> None:
        """Adds the measurement of one call."""
        self._count = self._count * _FORGETS + 1.0
        self._rows = self._rows * _FORGETS + rows
        self._seconds = self._seconds * _FORGETS + seconds
        self._rows_squared = self._rows_squared * _FORGETS + rows * rows
        self._product = self._product * _FORGETS + rows * seconds
        self._is_fitted = False

    def seconds(self, rows: int, calls: int = 1) -> float:
        """Estimates the seconds for `rows` examples in `calls` calls; 0 before the first measurement."""
        if not self._is_fitted:
            self._fit()
        return self._base * calls + self._slope * rows

    def _fit(self) -> None:
        self._is_fitted = True
        mean_rows, mean_seconds = self._rows / self._count, self._seconds / self._count
        mean_square = self._rows_squared / self._count
        variance = mean_square - mean_rows * mean_rows
        if variance <= _SPREAD * mean_square:  # one size only: constant and slope cannot be separated
            self._base, self._slope = 0.0, mean_seconds / mean_rows
            return
        slope = (self._product / self._count - mean_rows * mean_seconds) / variance
        self._slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        self._base = mean_seconds - self._slope * mean_rows


class WaitSlip:
    """Ratio of the actual wait of requests to the estimated time of the calls before them.

    Calls do not follow each other immediately: requests are decoded, rejected and answered in between, and the process
    may be preempted. Not thread-safe.
    """

    def __init__(self) -> None:
        self._mean = 1.0
        self._deviation = 0.0

    def add(self, expected: float, waited: float) -> None:
        """Adds the measurement of one request, in seconds."""
        if expected < _TELLING_SECONDS:
            return  # small waits are dominated by other effects
        slip = min(waited / expected, _MOST_SLIP)
        self._deviation += (1 - _FORGETS) * (abs(slip - self._mean) - self._deviation)
        self._mean += (1 - _FORGETS) * (slip - self._mean)

    @property
    def factor(self) -> float:
        """Factor for an expected wait that nearly no request exceeds; at least 1."""
        return min(max(1.0, self._mean + _DEVIATIONS * self._deviation), _MOST_SLIP)
