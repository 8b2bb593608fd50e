"""One pass over a dataset: an iterator that always knows how far it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T_co = TypeVar("T_co", covariant=True)

__all__ = ["Reading"]


class Reading(ABC, Generic[T_co]):
    """One pass over a dataset: an iterator with a position. Belongs to one thread at a time; close it, or use ``with``.

    One that is dropped without being closed closes itself, so leaving a ``for`` loop early is fine, too.

    >>> with dataset.read() as reading:  # doctest: +SKIP
    ...     batch = next(reading)
    ...     saved = reading.position
    >>> dataset.read(saved)  # goes on behind that batch  # doctest: +SKIP
    """

    @abstractmethod
    def __next__(self) -> T_co:
        """The next element; StopIteration at the end of the data, again at each further call."""

    def skip(self) -> None:
        """Steps over the next element, without making it where that saves work; StopIteration at the end."""
        next(self)

    @property
    @abstractmethod
    def position(self) -> bytes:
        """Where to go on behind the element that was returned last; before the first one: where reading began."""

    @abstractmethod
    def close(self) -> None:
        """Gives back files, connections and threads. Further calls do nothing."""

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # of one that was never built whole, or at the end of the interpreter
            self.close()
