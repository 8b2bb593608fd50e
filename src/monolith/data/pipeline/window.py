"""`Dataset.merged_window`: several batches as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.data.pipeline.counts import KnownLength, whole_number
from monolith.data.pipeline.stage import Stage, StageReading, StageSource
from monolith.data.rows import has_rows, join_rows

if TYPE_CHECKING:
    from monolith.data.reading import Reading

__all__ = ["MergedWindow"]


class MergedWindow(Stage[Any, Any]):
    """Joins the rows of `size` elements at a time; the last ones as many as they are.

    Args:
        size: Number of batches, or of blocks of records, that become one.
    """

    works_on_shares = True

    def __init__(self, size: int) -> None:
        self._size = whole_number("merged_window: size", size, at_least=1)

    def read(self, source: StageSource[Any], position: bytes | None) -> Reading[Any]:
        """Starts a reading whose position is that of the source after the last element that was joined."""
        return _WindowReading(source.read(position), self._size)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns a window for each `size` elements."""
        return KnownLength(None if source.elements is None else -(-source.elements // self._size), source.rows)

    def __repr__(self) -> str:
        return f"merged_window({self._size})"


class _WindowReading(StageReading[Any, Any]):
    def __init__(self, source: Reading[Any], size: int) -> None:
        super().__init__(source)
        self._size = size
        self._position = source.position
        self._gathered: list[Any] = []

    @property
    def position(self) -> bytes:
        return self._position

    def __next__(self) -> Any:
        while len(self._gathered) < self._size:
            try:
                element = next(self._source)
            except StopIteration:
                if not self._gathered:
                    raise
                break
            if not has_rows(element):
                raise TypeError(f"merged_window: expected batches or records, got a {type(element).__name__}")
            self._gathered.append(element)
        merged = join_rows(self._gathered)
        self._gathered, self._position = [], self._source.position
        return merged
