"""Publishes the rows of one server's share of a store to a delta log, across restores and restarts."""

from __future__ import annotations

import enum
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from monolith.data import known_examples, known_times
from monolith.deltalog import DeltaLog
from monolith.deltalog.publish import DeltaPublisher, LogPosition, Trained
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.ps.server.hosted_rows import HostedRows
    from monolith.tables import BatchStamp, ChangePosition, ChangeReader

_READER = "delta-log"


class PublishingRequest(NamedTuple):
    """What a client requests to publish."""

    name: str
    """Name of the store, for the names of the log's parts."""
    log: str
    base_folder: str | None
    interval: float
    record_bytes: int


class Published(NamedTuple):
    """Position of the log."""

    numbers: dict[str, int]
    """Part -> number of its last increment."""
    ended: dict[str, int]
    """Ended part -> number of its last increment."""
    mark: ChangePosition
    """Mark after all changes so far."""
    written: int = 0


class _RowsOrigin(enum.Enum):
    """Where the rows came from when their changes began to be tracked."""

    UNKNOWN = 0
    """Not tracked from the start."""
    RECORD = 1
    """Recovered by this server from its record."""
    RESTORED = 2
    """Replaced by the rows of a checkpoint, or by none."""


class HostedPublisher:
    """Publisher of one server's rows, as `RemotePublisher` of the clients orders it. Thread-safe.

    Replacing the rows ends publication: the client that restores them passes the position of the log in the checkpoint
    and begins publication again. A change of `life` without other rows does not end it.
    """

    def __init__(self, rows: HostedRows, *, is_recovered: bool) -> None:
        self._rows = rows
        self._is_recovered = is_recovered
        self._follows = False
        self._origin = _RowsOrigin.UNKNOWN
        self.recovered: LogPosition | None = None
        """Position of the log in the record that the rows were recovered from; None: the record has none."""
        self._lock = threading.RLock()  # guards the fields below; never taken while holding pushes
        self._publisher: DeltaPublisher | None = None
        self._wish: PublishingRequest | None = None

    def follow(self) -> None:
        """Tracks row changes before a client requests publication, so that none is missed after a restore.

        Call it before the first push. Without it, followers of the log begin at a base.
        """
        with self._lock:
            self._follows = True
            self._origin = _RowsOrigin.RECORD if self._is_recovered else _RowsOrigin.UNKNOWN
            self._open_reader(None)

    def begin(self, wish: PublishingRequest, position: bytes) -> None:
        """Starts publication; one with the same options keeps running.

        `position` is that of the log in the checkpoint that was restored last.
        """
        with self._lock:
            if self._publisher is not None and self._wish == wish and not self._publisher.is_replaced:
                return
            if self._publisher is not None:
                self._origin = _RowsOrigin.UNKNOWN
            self._end()
            known = {_RowsOrigin.RECORD: self.recovered, _RowsOrigin.RESTORED: LogPosition.from_bytes(position)}
            restored = known.get(self._origin)
            log = DeltaLog(wish.log, base_folder=wish.base_folder)
            self._wish, self._follows = wish, True
            self._publisher = DeltaPublisher(
                {wish.name: self._rows.store},
                log,
                interval=wish.interval,
                buckets=self._rows.owned,
                restored=restored if restored is not None and restored.place == log.place else None,
                record_bytes=wish.record_bytes,
                open_reader=self._open_reader,
                tally=StampTally(self._rows),
            )
            self._publisher.start()

    def published(self, *, now: bool, saved: bool) -> Published:
        """Returns the position of the log; empty before publication was requested.

        Args:
            now: Publish all changes so far first.
            saved: Ensure that an increment follows whose mark is after all changes so far.

        Raises:
            FailedPreconditionError: `now` is true, and nothing is published.
            AbortedError: another writer has the part.
            OpError: the log is unavailable.
        """
        publisher, wish = self._publisher, self._wish
        if publisher is None or wish is None:
            if now:
                raise FailedPreconditionError(f"store {self._rows.name!r}: it is not published; begin it first")
            return Published({}, {}, self._moment())
        written = publisher.publish() if now else 0
        current = publisher.numbers_now()
        numbers = publisher.numbers
        mark = self._moment()
        if saved:
            publisher.want_marks({wish.name: mark})
        return Published(numbers, {part: current[part] for part in current if part not in numbers}, mark, written)

    def position(self) -> LogPosition | None:
        """Returns the position of the log, for a writer that saves the rows now; does not block. None: not published.

        The log has all current rows once it has an increment with a later mark, and that increment will follow.
        """
        publisher, wish = self._publisher, self._wish
        if publisher is None or wish is None:
            return None
        numbers = publisher.numbers_now()
        marks = publisher.want_marks({wish.name: self._moment()})
        return LogPosition(place=publisher.log.place, step=0, numbers=numbers, marks=marks)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Wraps any replacement of the rows."""
        with self._lock:
            self._end(last_words=False)
            self._rows.history.close_reader(_READER)
            yield
            self._origin = _RowsOrigin.RESTORED if self._follows else _RowsOrigin.UNKNOWN
            if self._follows:
                self._open_reader(None)

    def close(self) -> None:
        """Publishes the remaining changes, and ends publication."""
        with self._lock:
            self._end()

    # Implementation

    def _end(self, *, last_words: bool = True) -> None:
        if self._publisher is not None:
            self._publisher.close(last_words=last_words)
            self._publisher = None

    def _open_reader(self, at: ChangePosition | None) -> ChangeReader:
        return self._rows.history.open_lasting_reader(_READER, at)

    def _moment(self) -> ChangePosition:
        """Returns a mark after all changes so far."""
        return self._rows.history.at(self._rows.last_epoch + 1)


class StampTally:
    """`deltalog.publish.publisher.Tally` from the stamps of rows, all that a server receives about batches.

    If a worker sent one batch since the last call, and its input position has the event times of that batch, as
    positions of a stream do, these are the oldest and the newest time. Otherwise the oldest time is estimated from the
    stamp before: where times arrive in order the oldest event is not older, so the reported delay is never too small.
    Examples are counted by input positions that count them, as positions of a stream do; other inputs count none here.
    """

    def __init__(self, rows: HostedRows) -> None:
        self._rows = rows
        self._seen: dict[int, BatchStamp] = dict(rows.stamps())

    def take(self) -> Trained:
        """Returns what was trained since the last call."""
        stamps = self._rows.stamps()
        came = [
            (self._seen.get(worker), stamp)
            for worker, stamp in stamps.items()
            if worker not in self._seen or self._seen[worker].seq < stamp.seq
        ]
        times = [_times(before, now) for before, now in came]
        self._seen = stamps
        return Trained(
            examples=sum(_num_examples(before, now) for before, now in came),
            oldest_event_ms=min((oldest for oldest, _ in times if oldest), default=0),
            newest_event_ms=max((newest for _, newest in times), default=0),
            step=self._rows.steps,
            stamps=stamps,
        )


def _num_examples(before: BatchStamp | None, now: BatchStamp) -> int:
    """Returns the number of examples after one stamp up to another; 0: unknown."""
    counted = known_examples(now.position)
    counted_before = 0 if before is None else known_examples(before.position)
    return 0 if counted is None or counted_before is None else max(0, counted - counted_before)


def _times(before: BatchStamp | None, now: BatchStamp) -> tuple[int, int]:
    """Returns the times of the oldest and the newest event after one stamp up to another; 0: unknown."""
    times, told_before = known_times(now.position), None if before is None else known_times(before.position)
    newest = now.event_time_ms if times is None else times[1]
    if times is not None and (before is None or now.seq == before.seq + 1):
        return times
    if times is not None and told_before is not None:
        return min(times[0], told_before[0]), newest
    return (now if before is None else before).event_time_ms or newest, newest
