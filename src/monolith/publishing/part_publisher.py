"""Publishes the changes of one store, or of some of its buckets, to one part of a delta log."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

import torch

from monolith.deltalog import GapError, IncrementKind, rows_part
from monolith.publishing.row_payload import RowPayloads
from monolith.publishing.serving_schema import serving_schema
from monolith.tables.history import ALL_BUCKETS, Mark
from monolith.tables.packed_blocks import PackedBlocks
from monolith.tables.row_block import BlockKind

if TYPE_CHECKING:
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

    When it is made it takes the part, from whoever had it, and sees to it that followers come to what this store holds:
    if the store was restored to where the log was, by publishing once more what was logged since; otherwise by a base.

    Args:
        name: Of the store, in the name of the part.
        store: The tables.
        log: Where changes go.
        buckets: Those that are published.
        restored: Where the log was when the state was saved that this store was restored from; None: it is not known.
        record_bytes: Changes are cut into increments of about so many bytes.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        log: DeltaLog,
        *,
        buckets: range = ALL_BUCKETS,
        restored: LogPosition | None = None,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        self.part = rows_part(name, buckets)
        self._name = name
        self._store = store
        self._log = log
        self._buckets = buckets
        self._payloads = RowPayloads(buckets, at_most=record_bytes)
        self._schema = serving_schema(store.schema)
        self._is_due = False
        self._reader: ChangeReader = store.open_reader(f"{READER_NAME}:{self.part}")
        try:
            self._writer = self._opened(restored)
        except BaseException:
            self._reader.close()
            raise

    @property
    def last_number(self) -> int:
        """Of the last increment that is in the log."""
        return self._writer.last_number

    @property
    def generation(self) -> int:
        """Of the part."""
        return self._writer.generation

    def publish(self, trained: Trained) -> int:
        """Writes what has changed since the last time; returns how many increments that took.

        After an error the same changes, and newer ones, are read again the next time.

        Raises:
            AbortedError: another writer has the part.
            OpError: the log is away.
        """
        reached = self._reader.next_mark()
        is_due, self._is_due = self._is_due, False
        payloads = self._payloads.of(self._reader)
        written = 0
        try:
            payload = next(payloads, None)
            if payload is not None or trained.examples or is_due:
                while payload is not None and (following := next(payloads, None)) is not None:
                    self._writer.append(kind=IncrementKind.ROWS, payload=payload)
                    payload, written = following, written + 1
                self._writer.append(
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

    def want_mark(self) -> None:
        """Has the next round write an increment even if nothing has changed: somebody has saved, and it tells so."""
        self._is_due = True

    def close(self) -> None:
        """Ends following the store; the log stays as it is."""
        self._reader.close()
        self._writer.close()

    # Beginning

    def _opened(self, restored: LogPosition | None) -> PartWriter:
        if self._log.extent(self.part) is None:
            self._follow_from_the_beginning()
            return self._log.open_writer(self.part, schema=self._schema)
        missing = "it is not known where the log was" if restored is None else self._touch_behind(restored)
        if not missing:
            return self._log.open_writer(self.part, schema=self._schema)
        _log.info("delta log '%s', part %r: followers begin at a new base: %s", self._log.place, self.part, missing)
        return self._opened_at_base()

    def _follow_from_the_beginning(self) -> None:
        """Everything that the store holds counts as changed."""
        now = self._reader.mark
        name = self._reader.name
        self._reader = self._store.open_reader(name, at=Mark(now.generation, now.life, 0))

    def _touch_behind(self, restored: LogPosition) -> str:
        """Has everything published again that was logged behind a position; says why that is not enough, if so."""
        number, cut = restored.numbers.get(self.part), restored.marks.get(self._name)
        if number is None or cut is None:
            return "the checkpoint does not say where this part was"
        is_covered = False
        try:
            for each in self._log.behind(self.part, number):
                if each.base is not None:
                    return f"increment {each.number} began at another base"
                self._touch(each.payload if each.kind is IncrementKind.ROWS else b"")
                is_covered |= each.mark[:2] == cut[:2] and each.mark.epoch >= cut.epoch
        except GapError as error:
            return error.message
        return "" if is_covered else "what had changed at the checkpoint was not all logged"

    def _touch(self, payload: bytes) -> None:
        for block in PackedBlocks(payload):
            if block.kind in {BlockKind.SERVING, BlockKind.TOMBSTONE} and block.count:
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
        )
        writer = self._log.open_writer(self.part, schema=self._schema, base=base.name)
        if writer.last_number != base.numbers[self.part]:  # somebody else wrote meanwhile
            self._log.add_base(base.at({self.part: writer.last_number}))
        return writer
