"""Random numbers by count: each is a function of (seed, purpose, number), so any of them can be drawn in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Reals = NDArray[np.float64]

_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_ID_BITS = 48
_ID_MASK = np.uint64((1 << _ID_BITS) - 1)


class CountedDraws:
    """Draws of one seed. Each purpose, a small number, is a sequence of its own.

    >>> draws = CountedDraws(seed=7)
    >>> bool(draws.uniform(1, np.array([5, 6]))[1] == draws.uniform(1, np.array([6]))[0])
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def uniform(self, purpose: int, numbers: Numbers) -> Reals:
        """Returns uniform draws in [0, 1), one for each number."""
        start = _mix_one(_mix_one(self._seed & _WORD) + purpose)
        words = _mix(numbers.astype(np.uint64) * np.uint64(_STEP) + np.uint64(start))
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, purpose: int, numbers: Numbers) -> Reals:
        """Returns standard normal draws, one for each number. Uses the sequences `purpose` and `purpose + 1`."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(purpose, numbers)))
        values: Reals = radius * np.cos(2.0 * np.pi * self.uniform(purpose + 1, numbers))
        return values


def scrambled(numbers: Numbers, purpose: int) -> Numbers:
    """Ids in [0, 2^48) for numbers in the same range: no two alike, and none near another.

    >>> scrambled(np.arange(2), purpose=0)
    array([167825961961603, 264258247972414])
    """
    words = (numbers.astype(np.uint64) + np.uint64(_mix_one(purpose) & int(_ID_MASK))) & _ID_MASK
    for factor in _FACTORS:  # odd factors and shifts to the right can be undone, so nothing collides
        words = (words ^ (words >> np.uint64(25))) * np.uint64(factor) & _ID_MASK
    return (words ^ (words >> np.uint64(23))).astype(np.int64)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies SplitMix64's output function: every bit depends on every bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FACTORS[0])
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return words ^ (words >> np.uint64(31))


def _mix_one(word: int) -> int:
    word = (word + _STEP) & _WORD
    return int(_mix(np.array([word], np.uint64))[0])
