"""A step of a pipeline: a `Stage`, which turns the readings of a source into readings of its own.

A stage does not depend on datasets: `Dataset` combines source and stage. A stage is immutable, and any number of
readings may use it concurrently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from monolith.data.reading import Reading
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable


class KnownLength(NamedTuple):
    """The length of a dataset before it is read; None: unknown."""

    elements: int | None = None
    rows: int | None = None
    """Number of rows of all elements together, if elements have rows."""


def whole_number(name: str, value: object, *, at_least: int) -> int:
    """Returns the value, which must be an integer of at least `at_least`.

    Raises:
        ValueError: it is not; `name` is the name in the message.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be an integer >= {at_least}, got {value!r}")
    return value


S = TypeVar("S")
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class StageSource(Protocol[S_co]):
    """Source of a stage: a `Dataset`."""

    def read(self, position: bytes | None = None) -> Reading[S_co]:
        """Starts to read from the beginning or from a position."""

    def for_epoch(self, epoch: int) -> StageSource[S_co]:
        """Returns the same elements, in the order of this pass over the data."""


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
