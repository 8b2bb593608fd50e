"""Reads the increments of one part, from a number on, and says how far it is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from monolith.clock import SystemClock
from monolith.deltalog.replay import Replay, Verdict
from monolith.errors import DataLossError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from monolith.clock import Clock
    from monolith.deltalog.increment import Increment
    from monolith.deltalog.transport import Transport
    from monolith.tables.schema import Schema


class Lag(NamedTuple):
    """How far a reader is behind its writer."""

    increments: int
    """That are written and were not read; an unfinished or damaged one at the end counts."""
    bytes: int
    """Of them, about."""
    seconds: float
    """Since the last increment that was read was written, where there are newer ones; 0 where there are none."""


class PartReader:
    """A reader of one part. Belongs to one thread.

    Args:
        transport: The log.
        part: Its name; a part that is not there yet is waited for.
        number: The first number that is wanted, one behind that of a base; None: the first that is there.
        schema: What the rows must look like; None: anything.
        clock: Of this machine.
    """

    def __init__(
        self,
        transport: Transport,
        part: str,
        *,
        number: int | None = None,
        schema: Schema | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.part = part
        self._transport = transport
        self._clock = clock or SystemClock()
        self._replay = Replay(part, place=transport.place, next_number=number, schema=schema)
        self._published_ms = 0
        self.ignored = 0
        """Records that did not count: duplicates, and those of writers that were replaced."""
        self._require_same_log(number)
        self._tail = transport.tail(part, number)

    @property
    def next_number(self) -> int | None:
        """What comes next; None before the first where any was wanted."""
        return self._replay.next_number

    @property
    def generation(self) -> int | None:
        """Of the last increment that was read."""
        return self._replay.generation

    @property
    def where(self) -> str:
        """Where the last record that was read is kept; empty before the first."""
        return self._tail.where

    def read(self) -> Increment | None:
        """The next increment; None: there is none yet, or it is still being written.

        Raises:
            GapError: increments are missing; names them.
            DataLossError: a record is corrupt.
            FailedPreconditionError: it is of another model; says what differs.
            UnavailableError: the log is away.
        """
        if self._replay.wrong is not None:
            self._replay.wrong.require()
        while (record := self._tail.next()) is not None:
            outcome = self._replay.take(record, where=self._tail.where)
            if outcome.verdict is Verdict.IGNORE:
                self.ignored += 1
                continue
            found = outcome.require()
            self._published_ms = found.published_ms
            return found
        return None

    def __iter__(self) -> Iterator[Increment]:
        """What there is now."""
        while (found := self.read()) is not None:
            yield found

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Returns when there may be more, after so many seconds, or when told to stop."""
        self._tail.wait(seconds, stop)

    @property
    def lag(self) -> Lag:
        """How far it is behind; asks the log."""
        extent = self._transport.extent(self.part)
        following = self._replay.next_number
        behind = 0 if extent is None else extent.next - (extent.first if following is None else following)
        if behind <= 0:
            unread = self._tail.unread_bytes()
            return Lag(1, unread, 0.0) if unread else Lag(0, 0, 0.0)
        seconds = max(0.0, self._clock.now() - self._published_ms / 1000) if self._published_ms else 0.0
        return Lag(behind, self._tail.bytes_behind(), seconds)

    def close(self) -> None:
        """Gives back what it holds."""
        self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_same_log(self, number: int | None) -> None:
        extent = self._transport.extent(self.part)
        if extent is not None and number is not None and extent.next < number:
            raise DataLossError(
                f"delta log '{self._transport.place}', part {self.part!r}: increment {number} was asked for, and"
                f" it ends before {extent.next}: it was made anew, or lost its end; begin at a base of it"
            )
