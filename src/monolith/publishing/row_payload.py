"""What the payloads of increments of rows are: the changes of a store, row blocks end to end, in bounded pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.history import bucket_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.tables.history import ChangeReader


class RowPayloads:
    """Reads changes some buckets at a time: all of them in one call where little has changed, as a rule.

    Only about one record is in memory, also where everything has changed: it begins with one bucket, and takes more as
    long as their changes stay below a record. What broke off begins so again.

    Args:
        buckets: Whose changes are read.
        at_most: A payload has about so many bytes.
    """

    def __init__(self, buckets: range, *, at_most: int) -> None:
        self._begin, self._end = bucket_bounds(buckets)
        self._at_most = at_most
        self._width = 1

    def of(self, reader: ChangeReader) -> Iterator[bytes]:
        """The changes of a reader, one payload after another; nothing where there are none."""
        first, width, self._width = self._begin, self._width, 1
        waiting: list[memoryview | bytes] = []
        size = 0
        while first < self._end:
            packed = reader.packed_changes(state=False, buckets=range(first, min(first + width, self._end)))
            first += width
            for piece in packed.pieces(self._at_most):
                waiting.append(piece)
                size += len(piece)
                if size >= self._at_most:
                    yield b"".join(waiting)
                    waiting, size = [], 0
            width = self._next_width(width, packed.num_bytes)
        if waiting:
            yield b"".join(waiting)
        self._width = width

    def _next_width(self, width: int, num_bytes: int) -> int:
        if 2 * num_bytes <= self._at_most:
            return min(2 * width, self._end - self._begin)
        return max(1, width // 2) if num_bytes > self._at_most else width
