"""Reads the increments of one part, from a number on, and measures its lag."""

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
    """Lag of a reader."""

    increments: int
    """Number of written increments not yet read; an unfinished or damaged one at the end counts."""
    bytes: int
    """Approximate size of these increments."""
    seconds: float
    """Age of the last read increment if there are newer ones, else 0."""


class PartReader:
    """A reader of one part. Not thread-safe.

    Args:
        transport: The log.
        part: Its name; the part may be created later.
        number: The first number to read, for example the one after that of a base; None: the first that exists.
        schema: Expected schema of the rows; None: any.
        clock: Clock of this machine; None: the system clock.
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
        """Number of records that did not count: duplicates, and those of replaced writers."""
        self._require_same_log(number)
        self._tail = transport.tail(part, number)

    @property
    def next_number(self) -> int | None:
        """Number of the next increment; None before the first one if no number was given."""
        return self._replay.next_number

    @property
    def generation(self) -> int | None:
        """Generation of the last read increment; None before the first."""
        return self._replay.generation

    @property
    def where(self) -> str:
        """Location of the last read record; empty before the first."""
        return self._tail.where

    def read(self) -> Increment | None:
        """Returns the next increment; None if there is none yet, or it is still being written.

        Raises:
            GapError: increments are missing; the message lists them.
            DataLossError: a record is corrupt.
            FailedPreconditionError: the record belongs to another model; the message lists the differences.
            UnavailableError: the log is unreachable.
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
        """Iterates over the increments available now."""
        while (found := self.read()) is not None:
            yield found

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Waits until there may be more, `seconds` have passed, or `stop` is set."""
        self._tail.wait(seconds, stop)

    @property
    def lag(self) -> Lag:
        """Computes the lag; queries the log."""
        extent = self._transport.extent(self.part)
        following = self._replay.next_number
        behind = 0 if extent is None else extent.next - (extent.first if following is None else following)
        if behind <= 0:
            unread = self._tail.unread_bytes()
            return Lag(1, unread, 0.0) if unread else Lag(0, 0, 0.0)
        seconds = max(0.0, self._clock.now() - self._published_ms / 1000) if self._published_ms else 0.0
        return Lag(behind, self._tail.bytes_behind(), seconds)

    def close(self) -> None:
        """Releases files and connections."""
        self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_same_log(self, number: int | None) -> None:
        extent = self._transport.extent(self.part)
        if extent is not None and number is not None and extent.next < number:
            raise DataLossError(
                f"delta log '{self._transport.place}', part {self.part!r}: increment {number} was requested, but"
                f" the part ends before increment {extent.next}: the log was recreated or truncated; load a base of it"
            )
