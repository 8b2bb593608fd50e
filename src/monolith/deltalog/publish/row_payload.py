"""Payloads of row increments: the changes of a store as concatenated row blocks, in pieces of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.history import bucket_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.tables.history import ChangeReader


class RowPayloads:
    """Reader of changes, several buckets at a time; usually all in one call if little has changed.

    Only about one record is in memory, even if everything has changed: it starts with one bucket, and adds more while
    their changes stay below a record. After an interruption it starts with one bucket again.

    Args:
        buckets: Buckets to read.
        at_most: Approximate maximum size of a payload, in bytes.
    """

    def __init__(self, buckets: range, *, at_most: int) -> None:
        self._begin, self._end = bucket_bounds(buckets)
        self._at_most = at_most
        self._width = 1

    def of(self, reader: ChangeReader) -> Iterator[bytes]:
        """Yields the changes of a reader as payloads; none if nothing has changed."""
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
