"""Publishes the changes of one store, or of some of its buckets, to one part of a delta log.

Where other owners have the buckets than before, such as three servers after two, the parts of before end: each new
owner takes those that it shares buckets with, so that nobody writes to them any more, and its own begins behind them.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

import torch

from monolith.deltalog import IncrementKind, rows_part, store_of
from monolith.errors import DataLossError, NotFoundError
from monolith.publishing.row_payload import RowPayloads
from monolith.publishing.serving_schema import serving_schema
from monolith.tables.history import ALL_BUCKETS, Mark, shared_buckets
from monolith.tables.packed_blocks import PackedBlocks
from monolith.tables.row_block import BlockKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.deltalog import DeltaLog, PartWriter
    from monolith.publishing.examples_tally import Trained
    from monolith.publishing.log_position import LogPosition
    from monolith.tables.history import ChangeReader
    from monolith.tables.store import Store

_log = logging.getLogger(__name__)

READER_NAME = "delta-log"
RECORD_BYTES = 32 << 20


class PartPublisher:
    """The changes of one store. One thread at a time may call it.

    It follows the store from the moment it is made. `open` takes the part, from whoever had it, and sees to it that
    followers come to what this store holds: if the store was restored to where the log was, by publishing once more
    what was logged since; otherwise by a base.

    Args:
        name: Of the store, in the name of the part.
        store: The tables.
        log: Where changes go.
        buckets: Those that are published.
        restored: Where the log was when the state was saved that this store was restored from; None: it is not known.
        record_bytes: Changes are cut into increments of about so many bytes.
        open_reader: How the changes are followed, from a mark on or from now; None: as a reader of the store.
    """

    has_own_clock = False

    def __init__(
        self,
        name: str,
        store: Store,
        log: DeltaLog,
        *,
        buckets: range = ALL_BUCKETS,
        restored: LogPosition | None = None,
        record_bytes: int = RECORD_BYTES,
        open_reader: Callable[[Mark | None], ChangeReader] | None = None,
    ) -> None:
        self.part = rows_part(name, buckets)
        self._name = name
        self._store = store
        self._log = log
        self._buckets = buckets
        self._payloads = RowPayloads(buckets, at_most=record_bytes)
        self._schema = serving_schema(store.schema)
        self._is_due = False
        self._ended: dict[str, int] = {}
        self._open_reader = open_reader or (lambda at: store.open_reader(f"{READER_NAME}:{self.part}", at=at))
        self._reader = self._open_reader(None)
        self._restored = restored
        self._writer: PartWriter | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """Its part -> number of the last increment that is in the log; nothing before it was opened."""
        return {} if self._writer is None else {self.part: self._writer.last_number}

    def open(self) -> None:
        """Takes the part; again, it does nothing.

        Raises:
            OpError: the log is away, or of another model; it can be tried again.
        """
        if self._writer is None:
            self._writer = self._opened(self._restored)

    def publish(self, trained: Trained) -> int:
        """Writes what has changed since the last time; returns how many increments that took.

        After an error the same changes, and newer ones, are read again the next time.

        Raises:
            AbortedError: another writer has the part.
            OpError: the log is away.
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
        """What was published last."""
        return self.numbers

    def before_cut(self) -> dict[str, int]:
        """Where the log is, with the parts of before that ended when this one began."""
        return {**self._ended, **self.numbers} if self._writer is not None else {}

    def after_cut(self, mark: Mark) -> dict[str, Mark]:
        """The mark of a cut by part; the next round writes an increment even if nothing has changed since."""
        self._is_due = True
        return {self.part: mark}

    def close(self) -> None:
        """Ends following the store; the log stays as it is."""
        self._reader.close()
        if self._writer is not None:
            self._writer.close()

    # Beginning

    def _opened(self, restored: LogPosition | None) -> PartWriter:
        self._ended = self._end_others(restored)
        is_new = self._log.extent(self.part) is None and not self._ended
        if is_new:
            self._follow_from_the_beginning()
        writer = self._log.open_writer(self.part, schema=self._schema, needs=self._ended)
        if is_new:
            return writer
        # From now on nobody else writes rows of these buckets: what is logged can be looked through.
        missing = "it is not known where the log was" if restored is None else self._touch_behind(restored)
        if not missing:
            return writer
        writer.close()
        _log.info("delta log '%s', part %r: followers begin at a new base: %s", self._log.place, self.part, missing)
        return self._opened_at_base()

    def _end_others(self, restored: LogPosition | None) -> dict[str, int]:
        """Takes the parts of other owners that share buckets with this one; part -> its last number."""
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
        """Everything that the store holds counts as changed."""
        now = self._reader.mark
        self._reader = self._open_reader(Mark(now.generation, now.life, 0))

    def _touch_behind(self, restored: LogPosition) -> str:
        """Has everything published again that was logged behind a position; says why that is not enough, if so."""
        marks = {part: mark for part, mark in restored.marks.items() if self._shares_buckets(part)}
        known = {bucket for part in marks for bucket in (store_of(part) or ("", ()))[1]}
        if not known.issuperset(self._buckets):
            return "the checkpoint does not say where the log of these buckets was"
        try:
            for part in {self.part, *self._ended, *marks}:
                missing = self._touch_part(part, behind=restored.numbers.get(part, -1), cut=marks.get(part))
                if missing:
                    return missing
        except DataLossError as error:  # a gap, or a damaged record
            return error.message
        return ""

    def _touch_part(self, part: str, *, behind: int, cut: Mark | None) -> str:
        """The same of one part; `cut` is its mark at the position, None where nobody wrote to it then."""
        is_covered = cut is None
        for each in self._log.behind(part, behind):
            if each.base is not None:
                return f"increment {each.number} of part {part!r} began at another base"
            self._touch(each.payload if each.kind is IncrementKind.ROWS else b"")
            is_covered |= cut is not None and each.mark[:2] == cut[:2] and each.mark.epoch >= cut.epoch
        return "" if is_covered else f"what had changed at the checkpoint was not all logged in part {part!r}"

    def _touch(self, payload: bytes) -> None:
        for block in PackedBlocks(payload):
            is_row = block.kind in {BlockKind.SERVING, BlockKind.TOMBSTONE} and block.count
            if is_row and block.bucket in self._buckets:
                table = self._store.schema.names[block.table]
                buckets = torch.full((block.count,), block.bucket, dtype=torch.int16)
                self._store.touch(table, torch.from_numpy(block.keys.copy()), buckets=buckets)

    def _opened_at_base(self) -> PartWriter:
        """Saves what there is; the part goes on from there."""
        extent = self._log.extent(self.part)
        base = self._log.save_base(
            {self._name: self._store},
            name=f"{self.part}-{secrets.token_hex(4)}",
            numbers={self.part: 0 if extent is None else extent.next},
            after=self._ended,
        )
        writer = self._log.open_writer(self.part, schema=self._schema, needs=self._ended, base=base.name)
        if writer.last_number != base.numbers[self.part]:  # somebody else wrote meanwhile
            self._log.add_base(base.at({self.part: writer.last_number}))
        return writer
