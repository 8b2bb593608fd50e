"""`Dataset.map`: a function over every element."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.filter import RowFilter
from monolith.data.pipeline.parse import Parsing
from monolith.data.pipeline.stage import Stage, StageReading, StageSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.data.reading import Reading

S = TypeVar("S")
T = TypeVar("T")

__all__ = ["Map"]


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
            made = self._call(self._function, next(self._source))
            if made is not None:
                return made
