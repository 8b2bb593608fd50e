"""One pass over a dataset, `Reading`, and a step of a pipeline, `Stage`, which makes readings of those of a source.

A stage does not depend on datasets: `Dataset` combines source and stage. A stage is immutable, and any number of
readings may use it concurrently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from monolith.closing import Closing
from monolith.data.position import NEXT_ACTION, SavedPosition, encode_position
from monolith.errors import FailedPreconditionError, InvalidArgumentError

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
    >>> dataset.read(saved)  # resumes after that batch  # doctest: +SKIP
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
        try:  # noqa: SIM105 - `suppress` is already deleted at interpreter shutdown
            self.close()
        except Exception:  # noqa: BLE001, S110 - not fully constructed, or at interpreter shutdown
            pass


T = TypeVar("T")


class IndexedReading(Reading[T]):
    """Fetches one element after another, by its number; its position is the number of those that were returned.

    `share` is which share of how many this is: other shares have other elements by the same numbers.
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
        self._index = 0
        if position is not None:
            self._index = SavedPosition(position, kind).require_share("share", share).number("index")
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


class KnownLength(NamedTuple):
    """The length of a dataset before it is read; None: unknown."""

    elements: int | None = None
    rows: int | None = None
    """Number of rows of all elements together, if elements have rows."""


def whole_number(name: str, value: object, *, at_least: int) -> int:
    """Returns the value, which must be an integer of at least `at_least`; `name` is its name in the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be an integer >= {at_least}, got {value!r}")
    return value


S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class StageSource(Protocol[S_co]):
    """Source of a stage: a `Dataset`."""

    def read(self, position: bytes | None = None) -> Reading[S_co]:
        """Starts to read from the beginning or from a position."""

    def for_epoch(self, epoch: int) -> StageSource[S_co]:
        """Returns the same elements, in the order of this pass over the data."""


def resumed(
    source: StageSource[S], position: bytes | None, kind: str, number: str, /, **same: Any
) -> tuple[Reading[S], int]:
    """Returns the source's reading from a position of this kind of stage, and a number in it; 0 without a position."""
    if position is None:
        return source.read(), 0
    saved = SavedPosition(position, kind).require_same(**same)
    return source.read(saved.position("source")), saved.number(number)


class Stage(ABC, Generic[S, T_co]):
    """Makes elements of type T out of those of a source."""

    @abstractmethod
    def read(self, source: StageSource[S], position: bytes | None) -> Reading[T_co]:
        """Starts to read from the beginning or from a position of a reading of an equal stage."""

    works_on_shares: bool = False
    """Whether the stage may run on the shares of several workers: together they then have every row exactly once."""

    makes_share: bool = False
    """Whether what comes out is the share of one worker, see `Dataset.is_share`."""

    keeps_length: bool = False
    """Whether there are as many elements and rows as in the source."""

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the number of elements and rows, given those of the source."""
        return source if self.keeps_length else KnownLength()

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}()"

    def for_epoch(self, epoch: int) -> Stage[S, T_co]:  # noqa: ARG002 - for those whose order depends on it
        """Returns the stage as it is in this pass over the data."""
        return self


class StageReading(Reading[T_co], Generic[S, T_co]):
    """A reading that reads another one, and closes it."""

    def __init__(self, source: Reading[S]) -> None:
        self._source = source
        self._failed_call: str | None = None

    @property
    def position(self) -> bytes:
        """Position of the source, for stages without buffered elements."""
        if self._failed_call is not None:
            raise FailedPreconditionError(
                f"{self._failed_call} failed on an element that was read from the source and not returned; "
                "resume from the position that was saved before it"
            )
        return self._source.position

    def close(self) -> None:
        """Closes the source."""
        self._source.close()

    def _call(self, function: Callable[[S], T], element: S) -> T:
        """Applies the user's function to an element; if it fails, the source is one element ahead of the user."""
        try:
            return function(element)
        except BaseException:
            self._failed_call = getattr(function, "__name__", type(function).__name__)
            raise
