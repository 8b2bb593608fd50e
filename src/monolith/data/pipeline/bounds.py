"""`Dataset.take` and `Dataset.skip`: the elements up to a number, or those after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.counts import KnownLength, whole_number
from monolith.data.pipeline.stage import Stage, StageReading, StageSource
from monolith.data.position import SavedPosition, encode_position, nested

if TYPE_CHECKING:
    from monolith.data.reading import Reading

T = TypeVar("T")

__all__ = ["Skip", "Take"]


class Take(Stage[T, T]):
    """The first `count` elements. The number is not part of a position: reading may resume with another one."""

    def __init__(self, count: int) -> None:
        self._count = whole_number("take: count", count, at_least=0)

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is that of the source, and how many were taken."""
        if position is None:
            return _TakeReading(source.read(), 0, self._count)
        saved = SavedPosition(position, "take")
        return _TakeReading(source.read(saved.position("source")), saved.number("taken"), self._count)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length of the source, at most `count`."""
        return KnownLength(None if source.elements is None else min(self._count, source.elements))

    def __repr__(self) -> str:
        return f"take({self._count})"


class _TakeReading(StageReading[T, T]):
    def __init__(self, source: Reading[T], taken: int, count: int) -> None:
        super().__init__(source)
        self._taken = taken
        self._count = count

    @property
    def position(self) -> bytes:
        return encode_position("take", {"source": nested(self._source.position), "taken": self._taken})

    def __next__(self) -> T:
        if self._taken >= self._count:
            raise StopIteration
        element = next(self._source)
        self._taken += 1
        return element


class Skip(Stage[T, T]):
    """The elements after the first `count`."""

    def __init__(self, count: int) -> None:
        self._count = whole_number("skip: count", count, at_least=0)

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is that of the source, and how many are still to be skipped."""
        if position is None:
            return _SkipReading(source.read(), self._count)
        saved = SavedPosition(position, "skip")
        return _SkipReading(source.read(saved.position("source")), saved.number("left"))

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length without the first `count`."""
        return KnownLength(None if source.elements is None else max(0, source.elements - self._count))

    def __repr__(self) -> str:
        return f"skip({self._count})"


class _SkipReading(StageReading[T, T]):
    def __init__(self, source: Reading[T], left: int) -> None:
        super().__init__(source)
        self._left = left

    @property
    def position(self) -> bytes:
        return encode_position("skip", {"left": self._left, "source": nested(self._source.position)})

    def __next__(self) -> T:
        while self._left:
            next(self._source)
            self._left -= 1
        return next(self._source)
