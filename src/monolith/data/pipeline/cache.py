"""`Dataset.cache`: the elements kept in memory after the first complete pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.indexed import IndexedReading
from monolith.data.pipeline.stage import Stage, StageSource
from monolith.data.position import SavedPosition, encode_position
from monolith.data.reading import Reading
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from monolith.data.pipeline.counts import KnownLength

T = TypeVar("T")

__all__ = ["Cache"]

_KIND = "cache"


class Cache(Stage[T, T]):
    """Holds the elements of the first complete reading; later readings need no source.

    The order is that of the first pass in every epoch, so shuffle after the cache. Elements are shared between readings
    and must not be changed. Memory holds all of them.
    """

    def __init__(self) -> None:
        self._elements: tuple[T, ...] | None = None

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is the number of returned elements. The source is read once from its start."""
        if self._elements is not None:
            return IndexedReading(_KIND, self._elements.__getitem__, len(self._elements), position)
        index = 0 if position is None else SavedPosition(position, _KIND).number("index")
        return _CacheReading(self, source.read(), index)

    def keep(self, elements: list[T]) -> None:
        """Has later readings use these."""
        self._elements = tuple(elements)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length of the source."""
        return source


class _CacheReading(Reading[T]):
    """Reads the source and remembers it. Does not extend StageReading: its position is a number."""

    def __init__(self, cache: Cache[T], source: Reading[T], index: int) -> None:
        self._cache = cache
        self._source = source
        self._index = index
        self._read: list[T] = []
        self._is_done = False

    @property
    def position(self) -> bytes:
        return encode_position(_KIND, {"index": self._index})

    def __next__(self) -> T:
        while not self._is_done:
            try:
                self._read.append(next(self._source))
            except StopIteration:
                self._finish()
                break
            if len(self._read) > self._index:
                self._index += 1
                return self._read[-1]
        raise StopIteration

    def close(self) -> None:
        """Closes the source; an incomplete pass is discarded."""
        self._is_done = True
        self._source.close()
        self._read = []

    def _finish(self) -> None:
        if self._index > len(self._read):
            raise InvalidArgumentError(
                f"position for a dataset of kind {_KIND!r}: it is after {self._index} elements, the source has "
                f"{len(self._read)}; the source is not the one that was read before"
            )
        self._cache.keep(self._read)
        self.close()
