"""The history of the reference: epochs, named readers, and which removals may be discarded."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.formats.row_block import PackedBlocks
from monolith.tables.history import ALL_BUCKETS, ChangePosition, ChangeReader, bucket_bounds
from monolith.testing.reference_blocks import changed_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from threading import RLock

    from monolith.tables.formats.row_block import RowBlock
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
