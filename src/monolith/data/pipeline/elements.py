"""Stages over elements, one at a time: `Dataset.map`, `filter`, `parse`, `take`, `skip`, `share` and `mark_last`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

from monolith.data.pipeline.stage import KnownLength, Stage, StageReading, StageSource, resumed, whole_number
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.rows import has_rows, num_rows_of, select_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from monolith.data.batch import Batch
    from monolith.data.pipeline.stage import Reading
    from monolith.data.records.records import Records

T = TypeVar("T")


class RowFilter:
    """A function for `Map` that keeps what a predicate of each element selects.

    True or False keeps or drops it; a bool tensor or array [rows] of a `Batch` or of `Records` keeps those rows.
    """

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        if not callable(predicate):
            raise TypeError(f"filter: expected a function, got {predicate!r}")
        self._predicate = predicate

    def __repr__(self) -> str:
        return f"filter({getattr(self._predicate, '__name__', self._predicate)})"

    def __call__(self, element: T) -> T | None:
        """Returns the element, its rows that are kept, or None."""
        kept = self._predicate(element)
        if isinstance(kept, Tensor):
            kept = kept.numpy(force=True)
        if not isinstance(kept, np.ndarray) or kept.ndim == 0:
            return element if kept else None
        rows = _row_numbers(kept, element)
        if len(rows) == len(kept):
            return element
        chosen: T | None = select_rows(element, rows) if len(rows) else None
        return chosen


def _row_numbers(mask: npt.NDArray[Any], element: object) -> npt.NDArray[np.int64]:
    if not has_rows(element):
        raise TypeError(f"filter: a mask of rows is for Batch and Records, got a mask for a {type(element).__name__}")
    if mask.dtype != np.bool_ or mask.shape != (num_rows_of(element),):
        raise ValueError(
            f"filter: expected a bool mask of shape [{num_rows_of(element)}], got {mask.dtype} {list(mask.shape)}"
        )
    return np.flatnonzero(mask)


class RecordParser(Protocol):
    """Makes batches of records: a `Parser`, a `JsonParser`, or a custom class."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""

    def parse(self, records: Records) -> Batch:
        """Returns the batch of these records, without those that are bad."""


class Parsing:
    """A function for `Map` that parses records; a block in which no record is good is dropped."""

    def __init__(self, parser: RecordParser) -> None:
        self._parser = parser

    def __call__(self, records: Records) -> Batch | None:
        """Returns the batch of a block."""
        batch = self._parser.parse(records)
        return batch if batch.num_rows else None

    def __repr__(self) -> str:
        return f"parse({', '.join(self._parser.names)})"


S = TypeVar("S")


class Map(Stage[S, T]):
    """Applies a function to each element; None drops the element."""

    works_on_shares = True

    def __init__(self, function: Callable[[S], T | None]) -> None:
        if not callable(function):
            raise TypeError(f"map: expected a function, got {function!r}")
        self._function = function

    def read(self, source: StageSource[S], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is that of the source."""
        return _MapReading(source.read(position), self._function)

    def __repr__(self) -> str:
        if isinstance(self._function, RowFilter | Parsing):
            return repr(self._function)
        return f"map({getattr(self._function, '__name__', self._function)})"


class _MapReading(StageReading[S, T]):
    def __init__(self, source: Reading[S], function: Callable[[S], T | None]) -> None:
        super().__init__(source)
        self._function = function

    def __next__(self) -> T:
        while True:
            mapped = self._call(self._function, next(self._source))
            if mapped is not None:
                return mapped


class Take(Stage[T, T]):
    """The first `count` elements. The number is not part of a position: reading may resume with another one."""

    def __init__(self, count: int) -> None:
        self._count = whole_number("take: count", count, at_least=0)

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is that of the source, and how many were taken."""
        return _TakeReading(*resumed(source, position, "take", "taken"), self._count)

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


_SHARE = "share"


def check_share(index: int, count: int) -> None:
    """Refuses what is no number of a worker among workers."""
    if not 0 <= index < count:
        expected = "the number of a worker from 0 on and how many there are"
        raise ValueError(f"share: expected {expected}, got {index}, {count}")


class Share(Stage[T, T]):
    """The elements of worker `index` of `count`: index, index + count, and so on. The others are stepped over."""

    makes_share = True

    def __init__(self, index: int, count: int) -> None:
        check_share(index, count)
        self._index = index
        self._count = count

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is that of the source, and how many of its elements are before it."""
        place = resumed(source, position, _SHARE, "elements", index=self._index, count=self._count)
        return _ShareReading(*place, self._index, self._count)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the number of elements of this share."""
        return KnownLength(None if source.elements is None else len(range(self._index, source.elements, self._count)))

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
        return encode_position(_SHARE, {**fields, "source": nested(super().position)})

    def __next__(self) -> T:
        while self._elements % self._count != self._index:
            self._source.skip()
            self._elements += 1
        element = next(self._source)
        self._elements += 1
        return element


class MarkLast(Stage[T, tuple[T, bool]]):
    """Pairs of an element and whether it is the last one; each share has a last one of its own."""

    works_on_shares = True
    keeps_length = True

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[tuple[T, bool]]:
        """Starts a reading; its position is after the returned element, not after the one read ahead."""
        return _MarkLastReading(source.read(position))

    def __repr__(self) -> str:
        return "mark_last()"


class _MarkLastReading(StageReading[T, "tuple[T, bool]"]):
    def __init__(self, source: Reading[T]) -> None:
        super().__init__(source)
        self._returned_to = source.position
        self._ahead: list[T] = []

    @property
    def position(self) -> bytes:
        return self._returned_to

    def __next__(self) -> tuple[T, bool]:
        if not self._ahead:
            self._ahead.append(next(self._source))
        behind = self._source.position
        try:
            following = [next(self._source)]
        except StopIteration:
            following = []
        (element,), self._ahead = self._ahead, following
        self._returned_to = behind
        return element, not following
