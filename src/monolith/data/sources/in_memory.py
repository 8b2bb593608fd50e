"""A dataset of what is in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from monolith.data.dataset import Dataset
from monolith.data.pipeline.counts import KnownLength
from monolith.data.pipeline.indexed import IndexedReading
from monolith.data.pipeline.share import check_share
from monolith.data.rows import has_rows, num_rows_of, select_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.data.reading import Reading

T = TypeVar("T")

__all__ = ["InMemoryDataset"]


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
