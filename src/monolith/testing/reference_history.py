"""The history of the reference: epochs, named readers, which removals may be discarded, and consistent cuts."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError
from monolith.tables import ALL_BUCKETS, ChangePosition, ChangeReader, Cut, OwnerClock, WrittenRows, bucket_bounds
from monolith.tables.formats import PackedBlocks
from monolith.tables.snapshot import bucket_ranges, file_name, write_file, writing_folder
from monolith.testing.reference_rows import all_blocks, changed_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from threading import RLock

    from monolith import _core
    from monolith.tables import BatchStamp, SnapshotWriteConfig
    from monolith.tables.formats import RowBlock
    from monolith.tables.snapshot import FileEntry
    from monolith.testing.reference_format import RowName
    from monolith.testing.reference_rows import DictionaryTable


class ReferenceHistory:
    """The run id (`life`) of the store, its readers, and the position of each reader.

    Removals after the `floor` are kept: the mark of the slowest reader or of the open cut, whichever is earlier.
    Without either no removals are kept, and changes can only be read from mark 0.
    """

    def __init__(self, tables: Sequence[DictionaryTable], lock: RLock) -> None:
        self.lock = lock
        self.tables = tables
        self.epoch = 1
        """The current epoch, of all new changes; marks are of earlier epochs."""
        self.readers: dict[str, int] = {}
        """Name -> epoch up to which the reader has read."""
        self.open_cut: int | None = None
        """The epoch of the open cut."""
        self._lost = 0
        """Changes up to this epoch are unknown: buckets were cleared."""
        self.generation = 0
        self.life = secrets.randbits(63)

    # Marks

    def at(self, epoch: int) -> ChangePosition:
        """Returns a mark of this run of the store."""
        return ChangePosition(self.generation, self.life, epoch)

    def mark(self) -> ChangePosition:
        """Ends the current epoch, and returns its mark."""
        with self.lock:
            self.epoch += 1
            return self.at(self.epoch - 1)

    def epoch_of(self, mark: ChangePosition) -> int:
        """Returns the epoch of a mark of this run of the store."""
        if (mark.generation, mark.life) != (self.generation, self.life):
            raise FailedPreconditionError(
                f"a mark of generation {mark.generation} is of another run of these tables, which are at"
                f" generation {self.generation}; start again from a cut"
            )
        if not 0 <= mark.epoch < self.epoch:
            raise FailedPreconditionError(f"mark {mark.epoch} has not happened yet, the last one is {self.epoch - 1}")
        return mark.epoch

    def begin_life(self, generation: int) -> None:
        """Begins a new run id after a rollback: earlier readers and marks are invalid."""
        self.readers.clear()
        self.forget()
        self.generation = max(self.generation, generation) + 1
        self.life = secrets.randbits(63)

    # Kept removals

    @property
    def keeps_removals(self) -> bool:
        """Whether a reader or a cut may read removals."""
        return bool(self.readers) or self.open_cut is not None

    @property
    def floor(self) -> int:
        """The earliest mark whose changes are available."""
        cut = [] if self.open_cut is None else [self.open_cut]
        return max(self._lost, min([self.epoch, *self.readers.values(), *cut]))

    def note_removal(self, table: DictionaryTable, name: RowName) -> None:
        """Records that an id was removed, or counts as removed."""
        if self.keeps_removals:
            table.contents.tombstones[name] = self.epoch

    def note_emptied(self) -> None:
        """Records that rows were removed without tombstones."""
        self._lost = self.mark().epoch

    def forget(self) -> None:
        """Discards the removals that no reader can request any more."""
        for table in self.tables:
            kept = {name: epoch for name, epoch in table.contents.tombstones.items() if epoch > self.floor}
            table.contents.tombstones = kept if self.keeps_removals else {}

    def require_known(self, epoch: int, floor: int) -> None:
        """Raises if the changes after a mark were discarded; mark 0 is before everything, and needs only the rows."""
        if 0 < epoch < floor:
            raise FailedPreconditionError(
                f"the changes after mark {epoch} were discarded up to mark {floor}; start again from a cut"
            )

    def changes(self, since: int, *, state: bool, buckets: range) -> Iterator[RowBlock]:
        """Yields tombstones and rows after an epoch, as they are now."""
        bucket_bounds(buckets)
        with self.lock:
            self.require_known(since, self.floor)
            blocks = list(changed_blocks(self.tables, since=since, epoch=self.epoch, state=state))
        return iter([block for block in blocks if block.bucket in buckets])

    # Readers

    def open_reader(self, name: str, at: ChangePosition | None) -> ReferenceChangeReader:
        """Opens a reader of changes."""
        if not name:
            raise InvalidArgumentError(f"a reader of changes needs a name, got {name!r}")
        with self.lock:
            if at is not None:
                epoch = self.epoch_of(at)
                self.require_known(epoch, self.floor)
                self.readers[name] = epoch
            elif name not in self.readers:
                self.readers[name] = self.mark().epoch
            self.forget()
            return ReferenceChangeReader(self, name)

    def close_reader(self, name: str) -> None:
        """Removes a reader."""
        with self.lock:
            self.readers.pop(name, None)
            self.forget()


class ReferenceChangeReader(ChangeReader):
    """A named reader; only the history stores its position."""

    def __init__(self, history: ReferenceHistory, name: str) -> None:
        self._history = history
        self._name = name
        self._life = history.at(0)

    @property
    def name(self) -> str:
        """Name of the reader in the store."""
        return self._name

    @property
    def mark(self) -> ChangePosition:
        """Position of the reader: all changes up to it were read."""
        with self._history.lock:
            return self._history.at(self._position())

    def next_mark(self) -> ChangePosition:
        """Ends the current epoch."""
        with self._history.lock:
            self._position()
            return self._history.mark()

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Yields tombstones and rows of everything touched after `mark`."""
        with self._history.lock:
            return self._history.changes(self._position(), state=state, buckets=buckets)

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """Returns the blocks of `changes`, in one piece."""
        return PackedBlocks.of(self.changes(state=state, buckets=buckets))

    def advance(self, to: ChangePosition) -> None:
        """Records that everything up to `to` was read."""
        with self._history.lock:
            epoch, present = self._history.epoch_of(to), self._position()
            if epoch < present:
                raise FailedPreconditionError(
                    f"reader {self.name!r}: it has read up to mark {present} and cannot go back to {epoch}"
                )
            self._history.readers[self.name] = epoch
            self._history.forget()

    def close(self) -> None:
        """Removes this reader from the store."""
        with self._history.lock:
            if self._life == self._history.at(0):
                self._history.close_reader(self.name)

    def _position(self) -> int:
        self._history.epoch_of(self._life)
        if self.name not in self._history.readers:
            raise FailedPreconditionError(f"reader {self.name!r} was closed; open it again")
        return self._history.readers[self.name]


class ReferenceCut(Cut):
    """A deep copy, so that later changes are not visible. The creator holds the store's lock."""

    def __init__(
        self, history: ReferenceHistory, stamps: Mapping[int, BatchStamp], on_release: Callable[[], None]
    ) -> None:
        self._history = history
        self._floor = history.floor
        self._mark = history.mark()
        self._tables: Sequence[DictionaryTable] = [table.frozen() for table in history.tables]
        self._stamps = dict(stamps)
        self._on_release = on_release
        self._read: set[int] = set()
        self._released = False

    @property
    def mark(self) -> ChangePosition:
        """Position in the history."""
        return self._mark

    @property
    def applied(self) -> Sequence[OwnerClock]:
        """Clocks: one owner has all buckets."""
        return (OwnerClock(ALL_BUCKETS, self._stamps),)

    @property
    def rows(self) -> Mapping[str, int]:
        """Table -> number of its rows."""
        return {table.schema.name: len(table.rows) for table in self._tables}

    def blocks(
        self, buckets: range = ALL_BUCKETS, *, state: bool = True, since: ChangePosition | None = None
    ) -> Iterator[RowBlock]:
        """Yields each bucket once per cut."""
        bucket_bounds(buckets)
        if since is None:
            self._claim(buckets)
            blocks = all_blocks(self._tables, epoch=self.mark.epoch, state=state)
        else:
            epoch = self._history.epoch_of(since)
            if epoch > self.mark.epoch:
                raise FailedPreconditionError(f"mark {epoch} comes after this cut, which is of mark {self.mark.epoch}")
            self._history.require_known(epoch, self._floor)
            self._claim(buckets)
            blocks = list(changed_blocks(self._tables, since=epoch, epoch=self.mark.epoch, state=state))
        return iter([block for block in blocks if block.bucket in buckets])

    def write(self, folder: str, rules: SnapshotWriteConfig, *, transfer: _core.Transfer | None = None) -> WrittenRows:
        """Writes one file of all buckets, or as many as the rules require; the rate is not limited."""
        self._claim(ALL_BUCKETS)
        if rules.drop_expired:
            for table in self._tables:
                for name in table.expired(table.contents.newest_time):
                    del table.rows[name]
        blocks = all_blocks(self._tables, epoch=self.mark.epoch, state=rules.state)
        files: list[FileEntry] = []
        with writing_folder(folder) as local:
            try:
                for begin, end in bucket_ranges(rules.num_files or 1):
                    own = [block for block in blocks if block.bucket in range(begin, end)]
                    files.append(_write(local, own, (begin, end), rules.snapshot_id, transfer))
            except BaseException:
                for file in files:
                    (local / file.name).unlink(missing_ok=True)
                raise
        newest = {table.schema.name: table.contents.newest_time for table in self._tables}
        return WrittenRows(files=files, rows=self.rows, newest_times=newest)

    def release(self) -> None:
        """Allows the next cut."""
        if not self._released:
            self._released = True
            self._on_release()

    def _claim(self, buckets: range) -> None:
        if self._released:
            raise FailedPreconditionError("cut: it was released; take another one")
        if not self._read.isdisjoint(buckets):
            raise FailedPreconditionError(f"cut: some of {buckets} were read already; a cut can be read once")
        self._read.update(buckets)


def _write(
    folder: Path,
    blocks: Sequence[RowBlock],
    buckets: tuple[int, int],
    snapshot_id: int,
    transfer: _core.Transfer | None,
) -> FileEntry:
    """Writes a bucket file; an error leaves no file."""
    path = folder / file_name(*buckets, snapshot_id)
    try:
        written = write_file(folder, blocks, buckets, snapshot_id)
    except OpError:
        path.unlink(missing_ok=True)
        raise
    if transfer is not None and transfer.cancelled:
        path.unlink()
        raise FailedPreconditionError("cancelled by the caller")
    return written
