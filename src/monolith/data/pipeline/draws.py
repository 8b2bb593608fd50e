"""Random numbers that are functions of their place: the same on every machine, with no state to save.

Numpy's generators may change between versions, and a saved position must mean the same order after an upgrade.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_MASK = (1 << 64) - 1


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mixes numbers to uniformly spread ones (the finalizer of splitmix64); a bijection."""
    with np.errstate(over="ignore"):
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def key_of(*parts: int) -> np.uint64:
    """Returns one number out of several, such as a seed, an epoch and a window; their order counts."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mix(key ^ np.array([part & _MASK], dtype=np.uint64))
    return np.uint64(key[0])


def permutation(count: int, *key: int) -> npt.NDArray[np.int64]:
    """Returns the numbers below `count` in an order that the key decides."""
    with np.errstate(over="ignore"):
        draws = mix(np.arange(count, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95) ^ key_of(*key))
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)
