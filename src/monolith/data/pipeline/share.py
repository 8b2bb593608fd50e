"""`Dataset.share`: every `count`-th element, for one of several workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.counts import KnownLength
from monolith.data.pipeline.stage import Stage, StageReading, StageSource
from monolith.data.position import SavedPosition, encode_position, nested

if TYPE_CHECKING:
    from monolith.data.reading import Reading

T = TypeVar("T")

__all__ = ["Share", "check_share"]

_KIND = "share"


def check_share(index: int, count: int) -> None:
    """Refuses what is no number of a worker among workers."""
    if not 0 <= index < count:
        raise ValueError(
            f"share: expected the number of a worker from 0 on and how many there are, got {index}, {count}"
        )


class Share(Stage[T, T]):
    """The elements of worker `index` of `count`: index, index + count, and so on. The others are stepped over."""

    makes_share = True

    def __init__(self, index: int, count: int) -> None:
        check_share(index, count)
        self._index = index
        self._count = count

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is that of the source, and how many of its elements are before it."""
        if position is None:
            return _ShareReading(source.read(), 0, self._index, self._count)
        saved = SavedPosition(position, _KIND).require_same(index=self._index, count=self._count)
        return _ShareReading(source.read(saved.position("source")), saved.number("elements"), self._index, self._count)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the number of elements of this share."""
        elements = None if source.elements is None else len(range(self._index, source.elements, self._count))
        return KnownLength(elements)

    def __repr__(self) -> str:
        return f"share({self._index}, {self._count})"


class _ShareReading(StageReading[T, T]):
    def __init__(self, source: Reading[T], elements: int, index: int, count: int) -> None:
        super().__init__(source)
        self._elements = elements
        self._index = index
        self._count = count

    @property
    def position(self) -> bytes:
        fields = {"count": self._count, "elements": self._elements, "index": self._index}
        return encode_position(_KIND, {**fields, "source": nested(super().position)})

    def __next__(self) -> T:
        while self._elements % self._count != self._index:
            self._source.skip()
            self._elements += 1
        element = next(self._source)
        self._elements += 1
        return element
