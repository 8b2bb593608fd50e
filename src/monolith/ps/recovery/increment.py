"""One increment of a recovery record: the changes in every store, and one consistent state of all owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.deltalog import IncrementKind
from monolith.errors import AbortedError
from monolith.ps.recovery.entries import DenseEntry, RowsEntry, Section
from monolith.ps.recovery.record_log import CHUNK_BYTES
from monolith.tables.formats import BlockKind, RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from monolith.ps.dense.shard import CapturedDense, DenseShard
    from monolith.ps.recovery.record_log import RecordBatch
    from monolith.ps.server.hosted_rows import HostedRows
    from monolith.ps.server.push_gates import PushGates

_RECORDER = -1
"""Id of the recorder at the gates; ids of clients differ from it."""
_HOLD_SECONDS = 1.0
"""Maximum time to hold pushes, and to wait for another hold."""


class IncrementWriter:
    """Copies changes into the record; not thread-safe. Errors leave the owners unchanged.

    Args:
        batch: Records to be written.
        make_way: Returns whether another thread waits for the record; the increment is cancelled then.
    """

    def __init__(self, batch: RecordBatch, *, make_way: Callable[[], bool]) -> None:
        self._batch = batch
        self._make_way = make_way
        self._copies: dict[str, _StoreCopy] = {}
        self.parts: dict[str, bytes] = {}
        """State of other parts of the server."""
        self.dense: CapturedDense | None = None
        """The dense weights, if they have changed."""

    def copy_rows(self, rows: HostedRows, *, begin: int, since: int) -> None:
        """Copies the changes in a store, concurrently with pushes.

        Args:
            rows: The store.
            begin: Epoch after which the copy has all changes, as stated in the record.
            since: Epoch to copy changes from; later than `begin` if nothing changed in between.
        """
        copy = _StoreCopy(rows, begin=begin, since=since, batch=self._batch, make_way=self._make_way)
        self._copies[rows.name] = copy
        copy.copy_beside()

    def take_moment(
        self,
        gates: PushGates,
        *,
        dense: DenseShard | None,
        known_version: int,
        parts: Mapping[str, Callable[[], bytes]],
        others: Mapping[str, bytes],
    ) -> None:
        """Holds pushes and copies the remaining changes.

        Args:
            gates: Gates of all owners.
            dense: The dense weights, unless their recorded state is invalid.
            known_version: Version that was written before.
            parts: Name -> function that returns its bytes.
            others: Recovered bytes of parts that are not registered yet.

        Raises:
            AbortedError: rows were replaced meanwhile, or the hold took too long.
            DeadlineExceededError: another client holds the pushes.
        """
        for copy in self._copies.values():
            copy.copy_beside()  # changes made while other stores were copied
        gates.hold(_RECORDER, _HOLD_SECONDS)
        try:
            for copy in self._copies.values():
                copy.take_moment()
            self.dense = None if dense is None else dense.capture(known_version)
            self.parts = {**others, **{name: dump() for name, dump in parts.items()}}
        finally:
            was_held = gates.release(_RECORDER)
        if not was_held:
            raise AbortedError(f"recovery record: the consistent cut took longer than {_HOLD_SECONDS} s")
        for copy in self._copies.values():
            copy.give_rest()

    @property
    def num_changes(self) -> int:
        """Number of copied rows and removals."""
        return sum(copy.changes for copy in self._copies.values())

    def entries(self) -> dict[str, RowsEntry]:
        """Returns the entry of each copied store."""
        return {name: copy.entry() for name, copy in self._copies.items()}

    def write_dense(self) -> DenseEntry | None:
        """Writes the dense weights, if they have changed."""
        if self.dense is None:
            return None
        data = self.dense.packed.data.numpy()
        chunks = (data[begin : begin + CHUNK_BYTES].tobytes() for begin in range(0, len(data), CHUNK_BYTES))
        return DenseEntry(
            layout=self.dense.layout,
            origin=self.dense.origin,
            stamps=self.dense.stamps,
            index_bytes=self.dense.packed.index_bytes,
            bytes=len(data),
            records=tuple(self._batch.add(IncrementKind.DENSE, chunk) for chunk in chunks),
        )


# A cut would do, but only one can be open: a checkpoint in progress would block the record. Instead rows are copied
# while they change, then those that changed meanwhile, and so on until few are left; these are copied while pushes
# are held. Loading all copies in order restores the rows at that epoch.

_FEW_ROWS = 2048
"""Copied in about a millisecond."""
_MOST_PASSES = 6


class _StoreCopy:
    """Copy of the changes of one store in the record."""

    def __init__(
        self, rows: HostedRows, *, begin: int, since: int, batch: RecordBatch, make_way: Callable[[], bool]
    ) -> None:
        self._rows = rows
        self._lineage = rows.lineage.number
        self._begin = begin
        self._since = since
        self._batch = batch
        self._make_way = make_way
        self._blocks: list[bytes] = []
        self._num_bytes = 0
        self._records: list[int] = []
        self._rest: list[RowBlock] = []
        self._entry: RowsEntry | None = None
        self._num_rows = 0
        """Number of rows copied so far; a row that changed meanwhile counts again."""
        self.changes = 0
        """Number of rows and removals copied so far."""

    def copy_beside(self) -> None:
        """Copies changes while pushes pass, until few rows are left.

        Raises:
            FailedPreconditionError: the history does not reach back to the epoch any more.
        """
        for _ in range(_MOST_PASSES):
            mark = self._rows.history.mark().epoch
            before = self.changes
            self._copy(self._rows.changes_since(self._since))
            self._since = mark
            if self.changes - before <= _FEW_ROWS:
                return

    def take_moment(self) -> None:
        """Copies the remaining changes, while pushes are held."""
        if self._rows.lineage.number != self._lineage:
            raise AbortedError(f"recovery record: the rows of store {self._rows.name!r} were replaced meanwhile")
        end = self._rows.history.mark().epoch
        self._rest = list(self._rows.changes_since(self._since))
        self._entry = entry_at(self._rows, end)

    def give_rest(self) -> None:
        """Adds what `take_moment` copied."""
        self._copy(self._rest)
        self._rest = []
        self._write()

    def entry(self) -> RowsEntry:
        """Returns the entry of the copied rows."""
        if self._entry is None:
            raise AssertionError("take_moment comes first")
        return self._entry.with_section(Section(begin=self._begin, records=tuple(self._records), rows=self._num_rows))

    def _copy(self, blocks: Iterable[RowBlock]) -> None:
        for block in blocks:
            if self._make_way():
                raise AbortedError("recovery record: another writer needs it")
            self._blocks.append(block.data)
            self._num_bytes += len(block.data)
            if self._num_bytes >= CHUNK_BYTES:
                self._write()
            self.changes += block.count
            if block.kind is BlockKind.FULL:
                self._num_rows += block.count

    def _write(self) -> None:
        if self._blocks:
            self._records.append(self._batch.add(IncrementKind.ROWS, b"".join(self._blocks)))
            self._blocks, self._num_bytes = [], 0


def entry_at(rows: HostedRows, epoch: int) -> RowsEntry:
    """Returns the entry of a store whose state is that of an epoch, without rows."""
    generation, life = rows.life
    return RowsEntry(
        agreement=rows.agreement.decode(),
        lineage=rows.lineage.number,
        generation=generation,
        life=life,
        end=epoch,
        stamps=rows.stamps(),
        newest_times=tuple(rows.newest_times()),
        snapshots=dict(rows.lineage.snapshots),
        section=None,
    )
