"""`Dataset.repeat`: the data again and again, each pass in its own order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.counts import KnownLength, whole_number
from monolith.data.pipeline.stage import Stage, StageSource
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.reading import Reading

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Repeat"]

_KIND = "repeat"


class Repeat(Stage[T, T]):
    """Repeated passes over the data, finite or endless; none with an empty source.

    Stages that shuffle below it use another order in each pass. The number of passes is not part of a position.

    Args:
        epochs: Number of passes; None: endless.
    """

    works_on_shares = True

    def __init__(self, epochs: int | None = None, *, first_epoch: int = 0) -> None:
        self._epochs = None if epochs is None else whole_number("repeat: epochs", epochs, at_least=0)
        self._first_epoch = first_epoch

    def for_epoch(self, epoch: int) -> Repeat[T]:
        """Returns passes whose count continues after those of earlier epochs."""
        return Repeat(self._epochs, first_epoch=epoch * (self._epochs or 0))

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[T]:
        """Starts a reading; its position is the pass, and that of the source in it."""
        if position is None:
            return _RepeatReading(self._pass_of(source), self._epochs, 0, None)
        saved = SavedPosition(position, _KIND)
        return _RepeatReading(
            self._pass_of(source), self._epochs, saved.number("epoch"), saved.optional_position("source")
        )

    def _pass_of(self, source: StageSource[T]) -> Callable[[int], StageSource[T]]:
        return lambda epoch: source.for_epoch(self._first_epoch + epoch)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length of the source times the number of epochs."""
        if self._epochs is None:
            return KnownLength()
        elements, rows = (None if number is None else number * self._epochs for number in source)
        return KnownLength(elements, rows)

    def __repr__(self) -> str:
        return f"repeat({'' if self._epochs is None else self._epochs})"


class _RepeatReading(Reading[T]):
    def __init__(
        self, pass_of: Callable[[int], StageSource[T]], epochs: int | None, epoch: int, start: bytes | None
    ) -> None:
        self._pass_of = pass_of
        self._epochs = epochs
        self._epoch = epoch
        self._start = start
        """Start position of the pass, until it is opened."""
        self._source: Reading[T] | None = None
        self._is_empty = start is None
        """Whether the pass was read from its start and had no element so far."""
        self._is_done = False
        # Begun here rather than at the first element: a wrong position is the caller's error.
        self._open()

    @property
    def position(self) -> bytes:
        source = self._start if self._source is None else self._source.position
        return encode_position(_KIND, {"epoch": self._epoch, "source": None if source is None else nested(source)})

    def __next__(self) -> T:
        while not self._is_done:
            self._open()
            if self._source is None:
                break
            try:
                element = next(self._source)
            except StopIteration:
                self._end_pass()
                continue
            self._is_empty = False
            return element
        raise StopIteration

    def close(self) -> None:
        """Closes the pass that is being read."""
        self._is_done = True
        if self._source is not None:
            self._source.close()

    def _open(self) -> None:
        if self._source is None and (self._epochs is None or self._epoch < self._epochs):
            self._source = self._pass_of(self._epoch).read(self._start)

    def _end_pass(self) -> None:
        if self._source is not None:
            self._source.close()
        if self._is_empty and self._epochs is None:
            self._is_done = True  # nothing to repeat, however often
            return
        self._source, self._start, self._is_empty = None, None, True
        self._epoch += 1
