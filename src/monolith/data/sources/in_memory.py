"""Datasets without files: of elements in memory, and of what a function makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from monolith.data.dataset import Dataset
from monolith.data.pipeline.elements import check_share
from monolith.data.pipeline.stage import IndexedReading, KnownLength
from monolith.data.rows import has_rows, num_rows_of, select_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monolith.data.pipeline.stage import Reading

T = TypeVar("T")


class InMemoryDataset(Dataset[T]):
    """The elements that it is given; one `Batch` of many rows is cut by `batch`.

    >>> dataset = InMemoryDataset([1, 2, 3]).batch(2)
    >>> list(dataset)
    [[1, 2], [3]]

    Args:
        elements: Kept as they are, not copied.
    """

    def __init__(self, elements: Iterable[T]) -> None:
        self._elements = tuple(elements)
        self._share = (0, 1)

    def share(self, index: int, count: int) -> Dataset[T]:
        """Returns every `count`-th element; with fewer elements than workers a part of the rows of each, if any."""
        check_share(index, count)
        if len(self._elements) >= count or not all(map(has_rows, self._elements)):
            return super().share(index, count)
        other = InMemoryDataset(_rows_of(element, index, count) for element in self._elements)
        own, shares = self._share
        other._share = (own * count + index, shares * count)
        return other

    @property
    def is_share(self) -> bool:
        """Whether it has only a part of the rows."""
        return self._share != (0, 1)

    def known_length(self) -> KnownLength:
        """Returns the number of elements."""
        rows = sum(map(num_rows_of, self._elements)) if all(map(has_rows, self._elements)) else None
        return KnownLength(len(self._elements), rows)

    def __repr__(self) -> str:
        return f"InMemoryDataset({len(self._elements)} elements)"

    def read(self, position: bytes | None = None) -> Reading[T]:
        """Starts a reading; its position is the number of elements that were returned."""
        fetch = self._elements.__getitem__
        return IndexedReading("memory", fetch, len(self._elements), position, share=self._share)


def _rows_of(element: Any, index: int, count: int) -> Any:
    rows = num_rows_of(element)
    return select_rows(element, slice(rows * index // count, rows * (index + 1) // count))


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
