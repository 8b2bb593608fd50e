"""A dataset of what a function makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.dataset import Dataset
from monolith.data.pipeline.counts import KnownLength
from monolith.data.pipeline.indexed import IndexedReading

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.data.reading import Reading

T = TypeVar("T")

__all__ = ["GeneratedDataset"]


class GeneratedDataset(Dataset[T]):
    """Element i is what the function makes of i: synthetic data, or anything that can be fetched by its number.

    >>> list(GeneratedDataset(lambda number: number * number, 4))
    [0, 1, 4, 9]

    Args:
        make: Called with 0, 1, 2 and so on; must make the same element of the same number.
        length: Number of elements; None for no end.
    """

    def __init__(self, make: Callable[[int], T], length: int | None = None) -> None:
        if length is not None and length < 0:
            raise ValueError(f"length of a generated dataset must be >= 0, or None for no end, got {length}")
        self._make = make
        self._length = length

    def known_length(self) -> KnownLength:
        """Returns the declared length."""
        return KnownLength(self._length)

    def share(self, index: int, count: int) -> Dataset[T]:
        """Returns every `count`-th element; the others are not made."""
        return super().share(index, count)

    def __repr__(self) -> str:
        return f"GeneratedDataset({getattr(self._make, '__name__', self._make)}, {self._length})"

    def read(self, position: bytes | None = None) -> Reading[T]:
        """Starts a reading; its position is the number of elements that were returned."""
        return IndexedReading("generated", self._make, self._length, position)
