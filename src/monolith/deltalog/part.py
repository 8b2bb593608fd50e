"""The reader and the writer of one part of a log.

The reader returns the increments from a number on, and measures its lag. The writer claims the part from its previous
writer, numbers the increments, and reopens the part after an error.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.clock import SystemClock
from monolith.closing import Closing
from monolith.deltalog.increment import Increment, IncrementKind
from monolith.deltalog.replay import Replay, Verdict
from monolith.errors import DataLossError
from monolith.tables import ChangePosition

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.clock import Clock
    from monolith.deltalog.transport import Appender, Claim, Transport
    from monolith.tables import Schema


class Lag(NamedTuple):
    """Lag of a reader."""

    increments: int
    """Number of written increments not yet read; an unfinished or damaged one at the end counts."""
    bytes: int
    """Approximate size of these increments."""
    seconds: float
    """Age of the last read increment if there are newer ones, else 0."""


class PartReader(Closing):
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
            increment = outcome.require()
            self._published_ms = increment.published_ms
            return increment
        return None

    def __iter__(self) -> Iterator[Increment]:
        """Iterates over the increments available now."""
        while (increment := self.read()) is not None:
            yield increment

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

    def _require_same_log(self, number: int | None) -> None:
        extent = self._transport.extent(self.part)
        if extent is not None and number is not None and extent.next < number:
            raise DataLossError(
                f"delta log '{self._transport.place}', part {self.part!r}: increment {number} was requested, but"
                f" the part ends before increment {extent.next}: the log was recreated or truncated; load a base of it"
            )


BEFORE_ALL = ChangePosition(0, 0, 0)


class PartWriter(Closing):
    """The writer of one part. Not thread-safe: calls must not overlap.

    The constructor opens a generation. After a failed `append` it is unknown whether its increment is in the log. The
    next `append` therefore opens another generation first, after which records of the failed one no longer count,
    unless another writer has the part by then.

    Args:
        transport: The log.
        part: Its name.
        schema: Schema of the serving rows; None: dense weights.
        needs: Part -> number that a follower must have applied before this generation.
        base: Base from which the records after the opening start, instead of continuing the records before it.
        clock: Clock of this machine; None: the system clock.
    """

    def __init__(
        self,
        transport: Transport,
        part: str,
        *,
        schema: Schema | None = None,
        needs: dict[str, int] | None = None,
        base: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.part = part
        self._transport = transport
        self._schema_text = "" if schema is None else schema.text
        self._schema_digest = 0 if schema is None else schema.digest
        self._clock = clock or SystemClock()
        self.writer = secrets.randbits(63)
        """Random id of this writer."""
        self._needs = dict(needs or {})
        self._base = base
        self.generation = 0
        """Current generation of this writer."""
        self.last_number = -1
        """Number of the last durable increment."""
        self.mark = BEFORE_ALL
        """Mark of the last increment."""
        self._appender: Appender | None = None
        self._open(after_writer=None)

    def append(self, *, mark: ChangePosition | None = None, **fields: Any) -> Increment:
        """Appends an increment, which is durable when this returns.

        Args:
            mark: Every change up to here is in the log with this increment; None: the mark of the previous increment.
            fields: Fields of `Increment` except part, generation, writer, number, digest and time.

        Raises:
            AbortedError: another writer has the part; this writer cannot continue.
            UnavailableError, ResourceExhaustedError, PermissionDeniedError: not written; the call may be retried.
        """
        return self.append_all([{"mark": self.mark if mark is None else mark, **fields}])[0]

    def next_number(self) -> int:
        """Returns the number of the next increment; after an error it reopens the part first, as `append` does."""
        if self._appender is None:
            self._open(after_writer=self.writer)
        return self.last_number + 1

    def append_all(self, batch: Sequence[Mapping[str, Any]]) -> list[Increment]:
        """Appends increments, which are durable when this returns; files are synced once for all of them.

        Args:
            batch: The fields of each increment, as for `append`.

        Raises:
            The errors of `append`; a part of the increments may be in the log.
        """
        first = self.next_number()
        increments = [
            self._increment(number=number, generation=self.generation, **{"mark": self.mark, **fields})
            for number, fields in enumerate(batch, first)
        ]
        writes = [increment.encode() for increment in increments]
        if self._transport.joins_records and len(writes) > 1:
            writes = [b"".join(writes)]
        appender, self._appender = self._appender, None
        assert appender is not None  # noqa: S101 - it was opened
        try:
            for number, record in enumerate(writes, first):
                appender.append(number, record)
        except BaseException:
            appender.close()
            raise
        self._appender = appender
        self.last_number, self.mark = increments[-1].number, increments[-1].mark
        return increments

    def close(self) -> None:
        """Releases files and connections; the log is unchanged."""
        if self._appender is not None:
            self._appender.close()
            self._appender = None

    def _open(self, *, after_writer: int | None) -> None:
        claimed: list[Claim] = []

        def opening(claim: Claim) -> bytes:
            claimed.append(claim)
            return self._increment(
                kind=IncrementKind.OPENING,
                number=claim.number,
                generation=claim.generation,
                mark=self.mark,
                needs=self._needs,
                base=self._base,
                follows=claim.follows,
                payload=self._schema_text.encode(),
            ).encode()

        self._appender = self._transport.open(self.part, opening, after_writer=after_writer)
        self.generation, self.last_number = claimed[-1].generation, claimed[-1].number
        self._base = None  # reopened after an error, the part continues from here

    def _increment(self, **fields: Any) -> Increment:
        return Increment(
            part=self.part,
            writer=self.writer,
            schema_digest=self._schema_digest,
            published_ms=int(1000 * self._clock.now()),
            **fields,
        )
