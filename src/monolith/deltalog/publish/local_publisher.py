"""Publishes the changes of one store, or of some of its buckets, to one part of a delta log.

When the owners of buckets change, for example from two servers to three, the previous parts end: each new owner claims
the parts with which it shares buckets, so that no writer can append to them, and its own part starts after them.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

import torch

from monolith.deltalog import IncrementKind, rows_part, store_of
from monolith.deltalog.publish.store_publisher import StorePublishingConfig, serving_schema
from monolith.errors import DataLossError, NotFoundError
from monolith.tables import ALL_BUCKETS, ChangePosition, bucket_bounds, shared_buckets
from monolith.tables.formats import BlockKind, PackedBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.deltalog import DeltaLog, PartWriter
    from monolith.deltalog.publish.log_position import LogPosition
    from monolith.deltalog.publish.publisher import Trained
    from monolith.tables import ChangeReader, Store

_log = logging.getLogger(__name__)

READER_NAME = "delta-log"


class LocalPublisher:
    """`StorePublisher` of rows of this process, to one part of a log. Not thread-safe: calls must not overlap.

    It follows the store from its construction on. `open` claims the part from its previous writer and brings followers
    to the state of this store: if the store was restored to a position of the log, by publishing again what was logged
    after it; otherwise by a new base.

    Args:
        name: Name of the store, used in the name of the part.
        store: The tables.
        log: Log to which changes are written.
        publishing_config: Settings; the interval is that of the caller.
        buckets: Buckets to publish.
        open_reader: Opens a reader of the changes, from a mark on or from now; None: a reader of the store.
    """

    has_own_clock = False

    def __init__(
        self,
        name: str,
        store: Store,
        log: DeltaLog,
        publishing_config: StorePublishingConfig | None = None,
        *,
        buckets: range = ALL_BUCKETS,
        open_reader: Callable[[ChangePosition | None], ChangeReader] | None = None,
    ) -> None:
        settings = publishing_config or StorePublishingConfig()
        self.part = rows_part(name, buckets)
        self._name = name
        self._store = store
        self._log = log
        self._buckets = buckets
        self._payloads = RowPayloads(buckets, at_most=settings.record_bytes)
        self._schema = serving_schema(store.schema)
        self._is_due = False
        self._ended: dict[str, int] = {}
        self._open_reader = open_reader or (lambda at: store.open_reader(f"{READER_NAME}:{self.part}", at=at))
        self._reader = self._open_reader(None)
        self._restored = settings.restored
        self._writer: PartWriter | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """Its part -> number of the last increment in the log; empty before `open`."""
        return {} if self._writer is None else {self.part: self._writer.last_number}

    def open(self) -> None:
        """Claims the part. Idempotent.

        Raises:
            OpError: the log is unreachable or belongs to another model; the call can be retried.
        """
        if self._writer is None:
            self._writer = self._opened(self._restored)

    def publish(self, trained: Trained) -> int:
        """Writes what has changed since the last call; returns the number of increments.

        After an error the next call reads the same changes, and newer ones, again.

        Raises:
            AbortedError: another writer has the part.
            OpError: the log is unreachable.
        """
        self.open()
        writer = self._writer
        assert writer is not None  # noqa: S101 - it was opened
        reached = self._reader.next_mark()
        is_due, self._is_due = self._is_due, False
        payloads = self._payloads.of(self._reader)
        written = 0
        try:
            payload = next(payloads, None)
            if payload is not None or trained.examples or is_due:
                while payload is not None and (following := next(payloads, None)) is not None:
                    writer.append(kind=IncrementKind.ROWS, payload=payload)
                    payload, written = following, written + 1
                writer.append(
                    kind=IncrementKind.ROWS,
                    mark=reached,
                    payload=payload or b"",
                    step=trained.step,
                    oldest_event_ms=trained.oldest_event_ms,
                    newest_event_ms=trained.newest_event_ms,
                    examples=trained.examples,
                    stamps=trained.stamps,
                )
                written += 1
        except BaseException:
            self._is_due = is_due
            raise
        self._reader.advance(reached)
        return written

    def needs(self) -> dict[str, int]:
        """Returns the number of the last published increment."""
        return self.numbers

    def before_cut(self) -> dict[str, int]:
        """Returns the position of the log, including the parts that ended when this one began."""
        return {**self._ended, **self.numbers} if self._writer is not None else {}

    def after_cut(self, mark: ChangePosition) -> dict[str, ChangePosition]:
        """Returns the mark of a cut by part. The next round writes an increment even if nothing has changed."""
        self._is_due = True
        return {self.part: mark}

    def close(self) -> None:
        """Stops following the store; the log is unchanged."""
        self._reader.close()
        if self._writer is not None:
            self._writer.close()

    # Opening

    def _opened(self, restored: LogPosition | None) -> PartWriter:
        self._ended = self._end_others(restored)
        is_new = self._log.extent(self.part) is None and not self._ended
        if is_new:
            self._follow_from_the_beginning()
        writer = self._log.open_writer(self.part, schema=self._schema, needs=self._ended)
        if is_new:
            return writer
        # From now on no other writer can append rows of these buckets, so the log can be scanned.
        missing = "no matching log position was restored" if restored is None else self._touch_behind(restored)
        if not missing:
            return writer
        writer.close()
        _log.info("delta log '%s', part %r: followers begin at a new base: %s", self._log.place, self.part, missing)
        return self._opened_at_base()

    def _end_others(self, restored: LogPosition | None) -> dict[str, int]:
        """Claims the parts of other owners that share buckets with this one; returns part -> its last number."""
        ended = {}
        for part in self._others():
            extent = self._log.extent(part)
            last = -1 if extent is None else extent.next - 1
            was_over = restored is not None and part not in restored.marks and restored.numbers.get(part) == last
            if not was_over:
                with self._log.open_writer(part, schema=self._schema) as taken:
                    last = taken.last_number
            ended[part] = last
        return ended

    def _others(self) -> list[str]:
        try:
            parts = self._log.parts()
        except NotFoundError:
            return []
        return [part for part in parts if part != self.part and self._shares_buckets(part)]

    def _shares_buckets(self, part: str) -> bool:
        place = store_of(part)
        return place is not None and place[0] == self._name and bool(shared_buckets(place[1], self._buckets))

    def _follow_from_the_beginning(self) -> None:
        """Marks all rows of the store as changed."""
        now = self._reader.mark
        self._reader = self._open_reader(ChangePosition(now.generation, now.life, 0))

    def _touch_behind(self, restored: LogPosition) -> str:
        """Marks all rows logged after a position as changed. Returns why that is not sufficient, or an empty text."""
        marks = {part: mark for part, mark in restored.marks.items() if self._shares_buckets(part)}
        known = {bucket for part in marks for bucket in (store_of(part) or ("", ()))[1]}
        if not known.issuperset(self._buckets):
            return "the checkpoint has no log position for these buckets"
        try:
            for part in {self.part, *self._ended, *marks}:
                missing = self._touch_part(part, behind=restored.numbers.get(part, -1), cut=marks.get(part))
                if missing:
                    return missing
        except DataLossError as error:  # a gap, or a damaged record
            return error.message
        return ""

    def _touch_part(self, part: str, *, behind: int, cut: ChangePosition | None) -> str:
        """Does this for one part; `cut` is its mark at the position, None if it had no writer then."""
        is_covered = cut is None
        for increment in self._log.behind(part, behind):
            if increment.base is not None:
                return f"increment {increment.number} of part {part!r} began at another base"
            self._touch(increment.payload if increment.kind is IncrementKind.ROWS else b"")
            is_covered |= cut is not None and increment.mark[:2] == cut[:2] and increment.mark.epoch >= cut.epoch
        return "" if is_covered else f"what had changed at the checkpoint was not all logged in part {part!r}"

    def _touch(self, payload: bytes) -> None:
        for block in PackedBlocks(payload):
            is_row = block.kind in {BlockKind.SERVING, BlockKind.TOMBSTONE} and block.count
            if is_row and block.bucket in self._buckets:
                table = self._store.schema.names[block.table]
                buckets = torch.full((block.count,), block.bucket, dtype=torch.int16)
                self._store.touch(table, torch.from_numpy(block.keys.copy()), buckets=buckets)

    def _opened_at_base(self) -> PartWriter:
        """Saves the store as a base from which the part continues."""
        extent = self._log.extent(self.part)
        base = self._log.save_base(
            {self._name: self._store},
            name=f"{self.part}-{secrets.token_hex(4)}",
            numbers={self.part: 0 if extent is None else extent.next},
            after=self._ended,
        )
        writer = self._log.open_writer(self.part, schema=self._schema, needs=self._ended, base=base.name)
        if writer.last_number != base.numbers[self.part]:  # another writer appended meanwhile
            self._log.add_base(base.at({self.part: writer.last_number}))
        return writer


class RowPayloads:
    """Reader of changes, several buckets at a time; usually all in one call if little has changed.

    Only about one record is in memory, even if everything has changed: it starts with one bucket, and adds more while
    their changes stay below a record. After an interruption it starts with one bucket again.

    Args:
        buckets: Buckets to read.
        at_most: Approximate maximum size of a payload, in bytes.
    """

    def __init__(self, buckets: range, *, at_most: int) -> None:
        self._begin, self._end = bucket_bounds(buckets)
        self._at_most = at_most
        self._width = 1

    def of(self, reader: ChangeReader) -> Iterator[bytes]:
        """Yields the changes of a reader as payloads; none if nothing has changed."""
        first, width, self._width = self._begin, self._width, 1
        waiting: list[memoryview | bytes] = []
        size = 0
        while first < self._end:
            packed = reader.packed_changes(state=False, buckets=range(first, min(first + width, self._end)))
            first += width
            for piece in packed.pieces(self._at_most):
                waiting.append(piece)
                size += len(piece)
                if size >= self._at_most:
                    yield b"".join(waiting)
                    waiting, size = [], 0
            width = self._next_width(width, packed.num_bytes)
        if waiting:
            yield b"".join(waiting)
        self._width = width

    def _next_width(self, width: int, num_bytes: int) -> int:
        if 2 * num_bytes <= self._at_most:
            return min(2 * width, self._end - self._begin)
        return max(1, width // 2) if num_bytes > self._at_most else width
