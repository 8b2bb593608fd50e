"""The history of the reference: epochs, named readers, and what may be forgotten."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.history import ALL_BUCKETS, ChangeReader, Mark, bucket_bounds
from monolith.tables.packed_blocks import PackedBlocks
from monolith.testing.reference_blocks import changed_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from threading import RLock

    from monolith.tables.row_block import RowBlock
    from monolith.testing.reference_format import RowName
    from monolith.testing.reference_rows import DictionaryTable


class ReferenceHistory:
    """Which life this is, who follows it, and how far each follower has read.

    Removals are remembered after the `floor`: the mark of the slowest reader or of the open cut, whichever is earlier.
    Without either nothing is remembered, and no mark but 0 can be asked for.
    """

    def __init__(self, tables: Sequence[DictionaryTable], lock: RLock) -> None:
        self.lock = lock
        self.tables = tables
        self.epoch = 1
        """The present one, of everything that changes now; marks are of those before it."""
        self.readers: dict[str, int] = {}
        """Name -> epoch up to which it has read."""
        self.open_cut: int | None = None
        """The epoch of the cut that is open."""
        self._lost = 0
        """What changed up to here is not known: buckets were emptied."""
        self.generation = 0
        self.life = secrets.randbits(63)

    # Marks

    def at(self, epoch: int) -> Mark:
        """A moment of this life."""
        return Mark(self.generation, self.life, epoch)

    def mark(self) -> Mark:
        """Ends the present epoch."""
        with self.lock:
            self.epoch += 1
            return self.at(self.epoch - 1)

    def epoch_of(self, mark: Mark) -> int:
        """The epoch of a mark of this life."""
        if (mark.generation, mark.life) != (self.generation, self.life):
            raise FailedPreconditionError(
                f"a mark of generation {mark.generation} is of another life of these tables, which are at generation"
                f" {self.generation}; start again from a cut"
            )
        if not 0 <= mark.epoch < self.epoch:
            raise FailedPreconditionError(f"mark {mark.epoch} has not happened yet, the last one is {self.epoch - 1}")
        return mark.epoch

    def begin_life(self, generation: int) -> None:
        """After a rollback: what readers and marks speak of has not happened."""
        self.readers.clear()
        self.forget()
        self.generation = max(self.generation, generation) + 1
        self.life = secrets.randbits(63)

    # What is remembered

    @property
    def keeps_removals(self) -> bool:
        """Whether anybody may ask for them."""
        return bool(self.readers) or self.open_cut is not None

    @property
    def floor(self) -> int:
        """The earliest mark whose changes can be told."""
        cut = [] if self.open_cut is None else [self.open_cut]
        return max(self._lost, min([self.epoch, *self.readers.values(), *cut]))

    def note_removal(self, table: DictionaryTable, name: RowName) -> None:
        """The id is gone, or counts as gone."""
        if self.keeps_removals:
            table.contents.tombstones[name] = self.epoch

    def note_emptied(self) -> None:
        """Rows went without being noted."""
        self._lost = self.mark().epoch

    def forget(self) -> None:
        """Drops the removals that nobody can ask for any more."""
        for table in self.tables:
            kept = {name: epoch for name, epoch in table.contents.tombstones.items() if epoch > self.floor}
            table.contents.tombstones = kept if self.keeps_removals else {}

    def require_known(self, epoch: int, floor: int) -> None:
        """Refuses a mark whose changes were forgotten; 0 is before everything, and the rows tell by themselves."""
        if 0 < epoch < floor:
            raise FailedPreconditionError(
                f"what changed after mark {epoch} was forgotten up to mark {floor}; start again from a cut"
            )

    def changes(self, since: int, *, state: bool, buckets: range) -> Iterator[RowBlock]:
        """Tombstones and rows after an epoch, as they are now."""
        bucket_bounds(buckets)
        with self.lock:
            self.require_known(since, self.floor)
            blocks = list(changed_blocks(self.tables, since=since, epoch=self.epoch, state=state))
        return iter([block for block in blocks if block.bucket in buckets])

    # Readers

    def open_reader(self, name: str, at: Mark | None) -> ReferenceChangeReader:
        """A follower of changes."""
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
        """Forgets a reader."""
        with self.lock:
            self.readers.pop(name, None)
            self.forget()


class ReferenceChangeReader(ChangeReader):
    """A named follower: how far it has read is known to the history alone."""

    def __init__(self, history: ReferenceHistory, name: str) -> None:
        self._history = history
        self._name = name
        self._life = history.at(0)

    @property
    def name(self) -> str:
        """Under which the store knows it."""
        return self._name

    @property
    def mark(self) -> Mark:
        """It has read everything up to here."""
        with self._history.lock:
            return self._history.at(self._position())

    def next_mark(self) -> Mark:
        """Ends the present epoch."""
        with self._history.lock:
            self._position()
            return self._history.mark()

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Tombstones and rows of everything touched after `mark`."""
        with self._history.lock:
            return self._history.changes(self._position(), state=state, buckets=buckets)

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """The blocks of `changes`, in one piece."""
        return PackedBlocks.of(self.changes(state=state, buckets=buckets))

    def advance(self, to: Mark) -> None:
        """Everything up to `to` was read."""
        with self._history.lock:
            epoch, present = self._history.epoch_of(to), self._position()
            if epoch < present:
                raise FailedPreconditionError(
                    f"reader {self.name!r}: it has read up to mark {present} and cannot go back to {epoch}"
                )
            self._history.readers[self.name] = epoch
            self._history.forget()

    def close(self) -> None:
        """The store forgets this reader."""
        with self._history.lock:
            if self._life == self._history.at(0):
                self._history.close_reader(self.name)

    def _position(self) -> int:
        self._history.epoch_of(self._life)
        if self.name not in self._history.readers:
            raise FailedPreconditionError(f"reader {self.name!r} was closed; open it again")
        return self._history.readers[self.name]
