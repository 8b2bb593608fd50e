"""One pass over a dataset: an iterator that always has a position."""

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
    """One pass over a dataset: an iterator with a position. Not thread-safe; close it, or use ``with``.

    A reading closes itself when it is garbage-collected, so leaving a ``for`` loop early is fine, too.

    >>> with dataset.read() as reading:  # doctest: +SKIP
    ...     batch = next(reading)
    ...     saved = reading.position
    >>> dataset.read(saved)  # goes on behind that batch  # doctest: +SKIP
    """

    @abstractmethod
    def __next__(self) -> T_co:
        """Returns the next element; StopIteration at the end of the data, again at each further call."""

    def skip(self) -> None:
        """Steps over the next element, without making it where that saves work; StopIteration at the end."""
        next(self)

    @property
    @abstractmethod
    def position(self) -> bytes:
        """Where to resume after the element that was returned last; before the first one: where reading started."""

    @abstractmethod
    def close(self) -> None:
        """Releases files, connections and threads. Idempotent."""

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # not fully constructed, or at interpreter shutdown
            self.close()
