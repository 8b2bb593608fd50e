"""Publishes the rows that one server has of a store to a delta log, whatever becomes of the rows and of their lives."""

from __future__ import annotations

import enum
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from monolith.data.position import known_examples, known_times
from monolith.deltalog import DeltaLog
from monolith.errors import FailedPreconditionError
from monolith.publishing.examples_tally import Trained
from monolith.publishing.log_position import LogPosition
from monolith.publishing.publisher import DeltaPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.ps.hosted_rows import HostedRows
    from monolith.tables.batch import BatchStamp
    from monolith.tables.history import ChangeReader, Mark

__all__ = ["HostedPublishing", "PublishWish", "Published"]

_READER = "delta-log"


class PublishWish(NamedTuple):
    """What a client wants to be published."""

    name: str
    """Of the store, in the names of the parts."""
    log: str
    base_folder: str | None
    interval: float
    record_bytes: int


class Published(NamedTuple):
    """Where the log is."""

    numbers: dict[str, int]
    """Part -> number of its last increment."""
    ended: dict[str, int]
    """The same of parts that have ended."""
    mark: Mark
    """Of this moment."""
    written: int = 0


class _Origin(enum.Enum):
    """Where the rows are from, since they are followed."""

    UNKNOWN = 0
    """Nobody has followed them all the time."""
    RECORD = 1
    """This server came back with them."""
    RESTORED = 2
    """They were put in the place of others: those of a checkpoint, or none."""


class HostedPublishing:
    """One part of a delta log. Any thread may call it.

    Rows that are replaced end it: whoever has put them there says where the log was when they were saved, and begins
    it anew. A life that ends without other rows does not.

    Args:
        rows: What is published.
        is_recovered: Whether the server came back with the rows.
    """

    def __init__(self, rows: HostedRows, *, is_recovered: bool) -> None:
        self._rows = rows
        self._is_recovered = is_recovered
        self._follows = False
        self._origin = _Origin.UNKNOWN
        self.recovered: LogPosition | None = None
        """Where the log was when the record was written that the rows came back from; None: it does not say."""
        self._lock = threading.RLock()  # guards what follows; not held where somebody holds pushes
        self._publisher: DeltaPublisher | None = None
        self._wish: PublishWish | None = None

    def follow(self) -> None:
        """Follows the rows before anybody has asked for it: nothing is missing between a restore and that moment.

        Before anybody has pushed. Without it, followers of the log begin at a base.
        """
        with self._lock:
            self._follows = True
            self._origin = _Origin.RECORD if self._is_recovered else _Origin.UNKNOWN
            self._open_reader(None)

    def begin(self, wish: PublishWish, position: bytes) -> None:
        """Publishes from now on; what is published so already goes on.

        Args:
            wish: What and where.
            position: Of the log, from the checkpoint that was restored last.
        """
        with self._lock:
            if self._publisher is not None and self._wish == wish and not self._publisher.is_replaced:
                return
            if self._publisher is not None:
                self._origin = _Origin.UNKNOWN
            self._end()
            known = {_Origin.RECORD: self.recovered, _Origin.RESTORED: LogPosition.from_bytes(position)}
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
        """Where the log is; nothing before somebody has asked for it.

        Args:
            now: What has changed until now is to be there.
            saved: An increment behind this moment is to come.

        Raises:
            FailedPreconditionError: it is to be there now, and nothing is published.
            AbortedError: another writer has the part.
            OpError: the log is away.
        """
        publisher, wish = self._publisher, self._wish
        if publisher is None or wish is None:
            if now:
                raise FailedPreconditionError(f"store {self._rows.name!r}: it is not published; begin it first")
            return Published({}, {}, self._moment())
        written = publisher.publish() if now else 0
        found = publisher.numbers_now()
        numbers = publisher.numbers
        mark = self._moment()
        if saved:
            publisher.want_marks({wish.name: mark})
        return Published(numbers, {part: found[part] for part in found if part not in numbers}, mark, written)

    def position(self) -> LogPosition | None:
        """Where the log is, for who writes the rows down at this moment; waits for nobody. None: nothing is published.

        The rows of this moment are all in the log once an increment has a later mark, and one will come.
        """
        publisher, wish = self._publisher, self._wish
        if publisher is None or wish is None:
            return None
        numbers = publisher.numbers_now()
        marks = publisher.want_marks({wish.name: self._moment()})
        return LogPosition(place=publisher.log.place, step=0, numbers=numbers, marks=marks)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Around whatever replaces the rows."""
        with self._lock:
            self._end(last_words=False)
            self._rows.history.close_reader(_READER)
            yield
            self._origin = _Origin.RESTORED if self._follows else _Origin.UNKNOWN
            if self._follows:
                self._open_reader(None)

    def close(self) -> None:
        """Publishes what is left, and ends."""
        with self._lock:
            self._end()

    # Inside

    def _end(self, *, last_words: bool = True) -> None:
        if self._publisher is not None:
            self._publisher.close(last_words=last_words)
            self._publisher = None

    def _open_reader(self, at: Mark | None) -> ChangeReader:
        return self._rows.history.open_lasting_reader(_READER, at)

    def _moment(self) -> Mark:
        """A mark that comes after everything until now."""
        return self._rows.history.at(self._rows.last_epoch + 1)


class StampTally:
    """`monolith.publishing.examples_tally.Tally` by the stamps of rows, which is all that a server hears of batches.

    Where a worker has sent one batch since the last time, and the position of its input tells the times of that batch,
    as those of a stream do, they are the oldest and the newest. Otherwise the oldest event is taken to be as old as the
    newest one of before: it is not older where times come in their order, and what is told of it is no better than it
    is. How many examples there were is known by their positions, too, where these count them, as those of a stream do;
    elsewhere none are counted here.
    """

    def __init__(self, rows: HostedRows) -> None:
        self._rows = rows
        self._seen: dict[int, BatchStamp] = dict(rows.stamps())

    def take(self) -> Trained:
        """What came since the last time."""
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
    """How many there were behind one stamp up to another; 0: not known."""
    counted = known_examples(now.position)
    counted_before = 0 if before is None else known_examples(before.position)
    return 0 if counted is None or counted_before is None else max(0, counted - counted_before)


def _times(before: BatchStamp | None, now: BatchStamp) -> tuple[int, int]:
    """Of the oldest and the newest event behind one stamp up to another; 0: not known."""
    told, told_before = known_times(now.position), None if before is None else known_times(before.position)
    newest = now.event_time_ms if told is None else told[1]
    if told is not None and (before is None or now.seq == before.seq + 1):
        return told
    if told is not None and told_before is not None:
        return min(told[0], told_before[0]), newest
    return (now if before is None else before).event_time_ms or newest, newest
