"""A consistent cut of the reference: a copy of its dictionaries, which can be read and written to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, OpError
from monolith.tables.history import ALL_BUCKETS, Cut, OwnerClock, WrittenRows, bucket_bounds
from monolith.tables.snapshot.bucket_file import write_file
from monolith.tables.snapshot.files import bucket_ranges, file_name
from monolith.tables.snapshot.location import writing_folder
from monolith.testing.reference_blocks import all_blocks, changed_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from monolith import _core
    from monolith.tables.batch import BatchStamp
    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import ChangePosition, SnapshotWriteConfig
    from monolith.tables.snapshot.manifest import FileEntry
    from monolith.testing.reference_history import ReferenceHistory
    from monolith.testing.reference_rows import DictionaryTable


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
            self._drop_expired()
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

    def _drop_expired(self) -> None:
        for table in self._tables:
            for name in table.expired(table.contents.newest_time):
                del table.rows[name]


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
