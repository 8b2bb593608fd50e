"""What training data is read from: `Dataset`, and its reading `Reading`, which always knows how far it is.

Everything that yields samples or batches is a dataset, sources and what is built on them alike. A position is the
dataset's own: bytes that only a dataset of the same construction understands. It stands behind the element that was
returned last, whatever sits in buffers below; reading on from it returns every later element once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T_co = TypeVar("T_co", covariant=True)

__all__ = ["Dataset", "Reading"]


class Reading(ABC, Generic[T_co]):
    """One pass over a dataset: an iterator with a position. Belongs to one thread at a time; close it, or use ``with``.

    >>> with dataset.read() as reading:  # doctest: +SKIP
    ...     batch = next(reading)
    ...     saved = reading.position
    >>> dataset.read(saved)  # goes on behind that batch  # doctest: +SKIP
    """

    @abstractmethod
    def __next__(self) -> T_co:
        """The next element; StopIteration at the end of the data, again at each further call."""

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


class Dataset(ABC, Generic[T_co]):
    """Elements in an order that depends on its arguments alone. It may be read many times; readings are independent."""

    @abstractmethod
    def read(self, position: bytes | None = None) -> Reading[T_co]:
        """Begins to read: at the start, or behind a position that a reading of an equal dataset had.

        Raises:
            InvalidArgumentError: the position is not of such a dataset; says how they differ.
        """

    def __iter__(self) -> Reading[T_co]:
        return self.read()
