"""One pass over a dataset: an iterator that always has a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from monolith.closing import Closing
from monolith.data.position import NEXT_ACTION, SavedPosition, encode_position
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

T_co = TypeVar("T_co", covariant=True)


class Reading(Closing, ABC, Generic[T_co]):
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

    def __del__(self) -> None:
        with suppress(Exception):  # not fully constructed, or at interpreter shutdown
            self.close()


T = TypeVar("T")


class IndexedReading(Reading[T]):
    """Fetches one element after another; its position is the number of those that were returned.

    Args:
        kind: Kind of the dataset, in positions and messages.
        fetch: Called with the number of an element.
        length: Number of elements; None for no end.
        position: Where to resume.
        share: Which share of how many this is; other shares have other elements by the same numbers.
    """

    def __init__(
        self,
        kind: str,
        fetch: Callable[[int], T],
        length: int | None,
        position: bytes | None,
        *,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._kind = kind
        self._share = {} if share == (0, 1) else {"share": list(share)}
        self._fetch = fetch
        self._length = length
        self._index = (
            0 if position is None else SavedPosition(position, kind).require_share("share", share).number("index")
        )
        self._is_closed = False
        if length is not None and self._index > length:
            raise InvalidArgumentError(
                f"position for a dataset of kind {kind!r}: it is after {self._index} elements, this dataset has "
                f"{length}; {NEXT_ACTION}"
            )

    @property
    def position(self) -> bytes:
        """The kind, and the number of elements that were returned."""
        return encode_position(self._kind, {"index": self._index, **self._share})

    def __next__(self) -> T:
        if self._is_closed or self._index == self._length:
            raise StopIteration
        element = self._fetch(self._index)
        self._index += 1
        return element

    def skip(self) -> None:
        """Steps over an element without fetching it."""
        if self._is_closed or self._index == self._length:
            raise StopIteration
        self._index += 1

    def close(self) -> None:
        """Ends the reading."""
        self._is_closed = True
