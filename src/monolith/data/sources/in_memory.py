"""A dataset of what is in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.dataset import Dataset
from monolith.data.pipeline.counts import Known
from monolith.data.pipeline.indexed import IndexedReading
from monolith.data.rows import has_rows, num_rows_of

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

    def known_length(self) -> Known:
        """What is there is known."""
        rows = sum(map(num_rows_of, self._elements)) if all(map(has_rows, self._elements)) else None
        return Known(len(self._elements), rows)

    def __repr__(self) -> str:
        return f"InMemoryDataset({len(self._elements)} elements)"

    def read(self, position: bytes | None = None) -> Reading[T]:
        """The position is the number of elements that were returned."""
        return IndexedReading("memory", self._elements.__getitem__, len(self._elements), position)
