"""The recovery record of one server: a part of a delta log, whose states commit the rows and weights before them."""

from __future__ import annotations

import logging
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from monolith.deltalog import Audit, FileTransport, IncrementKind, PartWriter, recovery_part
from monolith.errors import AbortedError, DataLossError, UnavailableError
from monolith.ps.recovery.chain import first_needed
from monolith.ps.recovery.entries import RecordedState
from monolith.tables import owned_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

_log = logging.getLogger(__name__)

_SEGMENT_BYTES = 1
"""Each increment is in files of its own, so that it is removed, with erased rows, once a checkpoint covers it."""
CHUNK_BYTES = 8 << 20
"""Rows or weights in one record, and bytes in memory before they are written."""


class RecordBatch:
    """Records that are being written; the last one is a state, which commits the others. Not thread-safe.

    Args:
        writer: Writer of the part.
        rate_bytes_per_second: Maximum rate; None: no limit.
    """

    def __init__(self, writer: PartWriter, rate_bytes_per_second: float | None) -> None:
        self._writer = writer
        self._rate = rate_bytes_per_second
        self._began = time.monotonic()
        self._next = writer.next_number()
        self._gathered: list[dict[str, Any]] = []
        self._num_gathered = 0
        self.num_bytes = 0
        """Size of all rows, weights and the state."""

    def add(self, kind: IncrementKind, payload: bytes) -> int:
        """Adds a record, and returns its number. Small ones are written together."""
        self._gathered.append({"kind": kind, "payload": payload})
        self._num_gathered += len(payload)
        self._next += 1
        if self._num_gathered >= CHUNK_BYTES:
            self._write()
            self._throttle()
        return self._next - 1

    def finish(self, state: RecordedState) -> int:
        """Adds the state, makes everything durable, and returns the number of the state."""
        number = self.add(IncrementKind.STATE, state.to_bytes())
        self._write()
        return number

    def _write(self) -> None:
        if self._gathered:
            self._writer.append_all(self._gathered)
            self.num_bytes += self._num_gathered
            self._gathered, self._num_gathered = [], 0

    def _throttle(self) -> None:
        if self._rate is not None:
            ahead = self.num_bytes / self._rate - (time.monotonic() - self._began)
            if ahead > 0:
                time.sleep(min(ahead, 1.0))


class UnreadableRecordError(UnavailableError):
    """The storage does not return the record, so that it is unknown whether there is state to recover."""


class RecordLog:
    """The record of one server. Not thread-safe: the owner serializes calls.

    Args:
        folder: Folder of the records of all servers.
        index: Index of the server.
        num_ps: Number of servers; a record of another number of servers is never read.
    """

    def __init__(self, folder: str, index: int, num_ps: int) -> None:
        self.index, self.num_ps = index, num_ps
        self.owned = owned_ranges(num_ps)[index]
        """Buckets of the server."""
        self.part = recovery_part(index, num_ps, self.owned)
        self.title = f"recovery record of server {index} in '{folder}'"
        self._transport = FileTransport(f"{folder}/servers", segment_bytes=_SEGMENT_BYTES)
        self._writer: PartWriter | None = None
        self._first_generation = 0
        self._begin = self._trimmed = 0
        self.needs_dense = False
        """Whether old dense weights hold back rows that are no longer needed."""
        self._is_taken_over = False
        self._sizes: dict[int, int] = {}
        self._intact: set[int] = set()
        self.states: dict[int, RecordedState] = {}
        """States that are in use, by number."""
        self.last = RecordedState()
        """The last state, even if its rows are damaged."""

    # The part

    def claim(self) -> None:
        """Claims the record for this process; a replaced process that is still alive stops writing."""
        with self._usable():
            self._writer = PartWriter(self._transport, self.part)
        self._first_generation = self._first_generation or self._writer.generation

    def close(self, *, give_back: bool = False) -> None:
        """Releases files; gives the record back to its previous owner, which may be alive, with `give_back`."""
        if self._writer is not None:
            self._writer.close()
            if give_back:
                self._transport.withdraw(self.part, range(self._first_generation, self._writer.generation + 1))

    def remove(self) -> None:
        """Removes all records."""
        self._transport.withdraw(self.part)

    def is_still_ours(self) -> bool:
        """Returns whether no other process has claimed the record."""
        if not self._is_taken_over and self._writer is not None:
            extent = self._transport.extent(self.part)
            if extent is None or (extent.generation, extent.writer) != (self._writer.generation, self._writer.writer):
                self._lose()
        return not self._is_taken_over

    def _lose(self) -> None:
        self._is_taken_over = True
        _log.warning(
            "%s: another process has taken the place of this one, which writes nothing from now on; end it", self.title
        )

    # Reading

    def read(self) -> None:
        """Reads all states; warns of damage. REQUIRES: this process has claimed the record.

        Raises:
            UnavailableError: the record cannot be read, or another process claims it at the same time.
        """
        generation, size = 0, 0
        audit = Audit(self.part, place=self._transport.place)
        with self._usable(), closing(self._transport.tail(self.part, None)) as tail:
            for increment, num_bytes in audit.read(tail):
                size += num_bytes
                if increment is None:
                    continue
                generation = increment.generation
                if increment.kind is IncrementKind.STATE:
                    self._take(increment.number, increment.payload, size)
                    size = 0
                elif increment.kind is not IncrementKind.OPENING:
                    self._intact.add(increment.number)
        for finding in audit.findings:
            _log.warning("%s; the states that need it are skipped", finding.text)
        if self._writer is None or generation != self._writer.generation:
            raise UnavailableError(f"{self.title}: another process claims it at the same time; end one of them")

    def is_intact(self, records: Collection[int]) -> bool:
        """Returns whether all records with these numbers were read, before or by `read`."""
        return self._intact.issuperset(records)

    def payloads(self, records: Collection[int]) -> Iterator[bytes]:
        """Reads the rows or weights with these numbers, in their order.

        Raises:
            DataLossError: one is missing.
            UnreadableRecordError: the storage fails.
        """
        wanted = set(records)
        if not wanted:
            return
        with self._usable(), closing(self._transport.tail(self.part, min(wanted))) as tail:
            for increment, _ in Audit(self.part, place=self._transport.place).read(tail):
                if increment is not None and increment.number in wanted:
                    wanted.remove(increment.number)
                    yield increment.payload
                if not wanted:
                    return
        raise DataLossError(f"{self.title}: records {sorted(wanted)} are missing")

    def start_over(self) -> None:
        """Starts over; existing states stay in the log until the next one is durable."""
        self.states, self.last = {}, RecordedState()
        self._begin = 0 if self._writer is None else self._writer.last_number + 1
        self._trimmed = 0

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except UnavailableError as error:
            raise UnreadableRecordError(
                f"{self.title}: {error.message}; check the disk and start again, or remove '{self._transport.place}' to"
                " start from the last checkpoint"
            ) from error

    def _take(self, number: int, payload: bytes, size: int) -> None:
        try:
            self.last = self.states[number] = RecordedState.from_bytes(payload)
        except DataLossError as error:
            _log.warning("%s: state %d: %s; it is skipped", self.title, number, error)
        else:
            self._sizes[number] = size

    # Writing

    @property
    def num_bytes(self) -> int:
        """Size of the states that are in use."""
        return sum(self._sizes.get(number, 0) for number in self.states)

    def append(
        self, fill: Callable[[RecordBatch], RecordedState | None], *, rate: float | None = None
    ) -> RecordedState | None:
        """Appends a state.

        Args:
            fill: Adds rows and weights, and returns the state; None: nothing worth a state.
            rate: Maximum rate in bytes per second.

        Raises:
            AbortedError: another process has claimed the record, or `fill` was aborted.
            OpError: the state could not be written, or is not known to be durable.
        """
        try:
            if self._writer is None:
                self.claim()
            assert self._writer is not None  # noqa: S101 - it was claimed
            batch = RecordBatch(self._writer, rate)
            state = fill(batch)
            if state is None:
                return None
            number = batch.finish(state)
        except AbortedError:
            self.is_still_ours()
            raise
        self.last = self.states[number] = state
        self._sizes[number] = batch.num_bytes
        return state

    def remove_covered(self, snapshots: Collection[int]) -> None:
        """Removes what is in the snapshots of the newest checkpoint or in later states."""
        if not self.states:
            return
        needed = first_needed(self.states, snapshots)
        first = 1 + max((number for number in self.states if number < needed), default=self._begin - 1)
        dense = () if self.last.dense is None else self.last.dense.records
        self.needs_dense = min(dense, default=first) < first
        first = min(first, *dense) if dense else first
        if first != self._trimmed:
            self._transport.trim(self.part, first)
            self._trimmed = first
            self.states = {number: state for number, state in self.states.items() if number >= first}

    def remove_all(self) -> None:
        """Removes all states, because they are wrong and cannot be corrected by a new one."""
        if self._writer is not None:
            self._writer.close()
            self._transport.withdraw(self.part, range(self._writer.generation + 1))
            self._writer = None
        self.start_over()
