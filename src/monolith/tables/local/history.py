"""Marks and change readers of the rows of one native group in this process."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.forks import fork_safe
from monolith.tables.formats.row_block import PackedBlocks, RowBlock
from monolith.tables.history import ALL_BUCKETS, ChangePosition, bucket_bounds, shared_buckets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith import _core
    from monolith.tables.local.group_store import RowGroup

_MOST_MARKS = 1 << 24
"""Most epochs that `mark_at` closes in one call (some seconds); a new owner has to reach the epoch of older ones."""


def row_blocks(source: _core.BlockIterator) -> Iterator[RowBlock]:
    """Yields the blocks of a native iterator."""
    while (data := next(source, None)) is not None:
        yield RowBlock(data)


class LocalHistory:
    """The identity of the store's current run, its change readers, and the position of each. Thread-safe.

    Every mark and every cut closes an epoch. The group discards the history that the slowest reader has read, and that
    the owner has recorded; without readers it keeps no history at all.
    """

    def __init__(self, group: RowGroup, owned: range, subject: str) -> None:
        self._group = group
        self._owned = owned
        self._subject = subject
        self._lock = fork_safe(threading.RLock())
        self._readers: dict[str, int] = {}
        """Name -> epoch up to which the reader has read."""
        self._lasting: set[str] = set()
        """Readers that belong to the owner itself and survive `begin_life`."""
        self._kept_from: int | None = None
        """The owner itself has recorded everything up to this epoch; None: the owner does not follow changes."""
        self._generation = 0
        self._life = secrets.randbits(63)

    def at(self, epoch: int) -> ChangePosition:
        """Returns the mark of an epoch of the current run."""
        return ChangePosition(self._generation, self._life, epoch)

    def is_present(self, mark: ChangePosition) -> bool:
        """Returns whether a mark belongs to the current run."""
        return (mark.generation, mark.life) == (self._generation, self._life)

    def begin_life(self, generation: int) -> None:
        """Starts a new run after a rollback: marks and readers of the previous run become invalid."""
        with self._lock:
            self.take_life(max(self._generation, generation) + 1, secrets.randbits(63))

    def take_life(self, generation: int, life: int) -> None:
        """Starts a run with an id that another process has drawn, for all owners of a store."""
        with self._lock:
            for name in self._readers.keys() - self._lasting:
                self.close_reader(name)
            self._generation = generation
            self._life = life

    def mark(self) -> ChangePosition:
        """Closes the present epoch."""
        with self._lock:
            return self.at(self._group.mark())

    def mark_at(self, epoch: int) -> None:
        """Closes epochs up to this one, if it is in the future: the last epoch of the owners elsewhere.

        Raises:
            InvalidArgumentError: the epoch is implausibly far ahead.
        """
        with self._lock:
            missing = epoch - self._group.last_mark()
            if missing > _MOST_MARKS:
                raise InvalidArgumentError(
                    f"{self._subject}: mark {epoch} was requested, {missing} ahead of the last one; at most"
                    f" {_MOST_MARKS} are made in one call"
                )
            for _ in range(missing):
                self._group.mark()

    def epoch_of(self, mark: ChangePosition) -> int:
        """Returns the epoch of a mark of the current run.

        Raises:
            FailedPreconditionError: the mark is of another run, or lies in the future.
        """
        if not isinstance(mark, ChangePosition):
            raise TypeError(
                f"{self._subject}: expected a Mark, as mark(), a cut or a reader gives it, got {mark!r};"
                " leave it out to ask for all"
            )
        if not self.is_present(mark):
            raise FailedPreconditionError(
                f"{self._subject}: a mark of generation {mark.generation} is of another run of these tables,"
                f" which are at generation {self._generation} after a rollback or a restart; start again from a cut"
            )
        last = self._group.last_mark()
        if not 0 <= mark.epoch <= last:
            raise FailedPreconditionError(
                f"{self._subject}: mark {mark.epoch} has not happened yet, the last one is {last}"
            )
        return mark.epoch

    def changes(self, since: int, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Yields tombstones and rows changed after an epoch, as they are now."""
        return row_blocks(self._group.changes(since, self._bounds(buckets), state))

    def packed_changes(self, since: int, *, state: bool, buckets: range) -> PackedBlocks:
        """Like `changes`, in one buffer."""
        return PackedBlocks(self._group.packed_changes(since, self._bounds(buckets), state))

    def _bounds(self, buckets: range) -> tuple[int, int]:
        """Returns the bounds of the buckets that are the owner's."""
        bucket_bounds(buckets)
        return bucket_bounds(shared_buckets(self._owned, buckets))

    # Readers

    def open_reader(self, name: str, at: ChangePosition | None) -> LocalChangeReader:
        """Opens a reader of changes, as `Store.open_reader` does."""
        if not name:
            raise InvalidArgumentError(f"{self._subject}: a reader of changes needs a name, got {name!r}")
        with self._lock:
            if at is not None:
                epoch = self.epoch_of(at)
                self._require_kept(epoch)
                self._follow()
                self._readers[name] = epoch
                self.forget()  # the reader may have moved ahead
            elif name not in self._readers:
                self._follow()  # before the mark: what comes after it is kept
                self._readers[name] = self.mark().epoch
            return LocalChangeReader(self, name, self.at(self._readers[name]))

    def reader_epoch(self, name: str) -> int | None:
        """Returns the epoch up to which a reader has read; None: no reader has this name."""
        with self._lock:
            return self._readers.get(name)

    def begin_reader(self, name: str, epoch: int) -> None:
        """Opens a new reader at a mark of this epoch; owners elsewhere open theirs at the same epoch.

        If that epoch has passed already, the reader begins at a new mark.
        """
        if not name:
            raise InvalidArgumentError(f"{self._subject}: a reader of changes needs a name, got {name!r}")
        with self._lock:
            self._follow()  # before the mark: what comes after it is kept
            try:
                self.mark_at(epoch - 1)
                self._readers[name] = self.mark().epoch
            finally:
                self._stop_following()

    def position_of(self, reader: LocalChangeReader) -> int:
        """Returns the epoch up to which a reader has read.

        Raises:
            FailedPreconditionError: the reader was closed, or its run has ended.
        """
        with self._lock:
            self.epoch_of(reader.opened_at)
            if reader.name not in self._readers:
                raise FailedPreconditionError(f"{self._subject}: reader {reader.name!r} was closed; open it again")
            return self._readers[reader.name]

    def advance(self, name: str, epoch: int) -> None:
        """Records that a reader has read up to an epoch, and discards the history that every reader has read."""
        with self._lock:
            self._readers[name] = epoch
            self.forget()

    def close_reader(self, name: str) -> None:
        """Removes a reader. Does nothing if there is no reader of this name."""
        with self._lock:
            self._lasting.discard(name)
            if self._readers.pop(name, None) is None:
                return
            self.forget()
            self._stop_following()

    # The owner itself

    def open_lasting_reader(self, name: str, at: ChangePosition | None = None) -> LastingReader:
        """Opens a reader that survives `begin_life`, for the owner itself: the same rows keep their epochs."""
        with self._lock:
            self.open_reader(name, at)
            self._lasting.add(name)
            return LastingReader(self, name)

    def keep(self) -> int:
        """Keeps all changes from now on, with or without readers, also after `begin_life`; returns the mark's epoch."""
        with self._lock:
            self._follow()  # before the mark: what comes after it is kept
            self._kept_from = self.mark().epoch
            self.forget()
            return self._kept_from

    def keep_from(self, epoch: int) -> None:
        """Releases, for the owner, the history up to this epoch."""
        with self._lock:
            self._kept_from = epoch
            self.forget()

    def stop_keeping(self) -> None:
        """Stops keeping history for the owner."""
        with self._lock:
            self._kept_from = None
            self.forget()
            self._stop_following()

    def _positions(self) -> list[int]:
        """Returns the positions of all readers and of the owner."""
        return [*self._readers.values(), *([] if self._kept_from is None else [self._kept_from])]

    def _stop_following(self) -> None:
        if not self._positions():
            self._group.follow_history(False)

    def _follow(self) -> None:
        if not self._positions():
            self._group.follow_history(True)

    def _require_kept(self, epoch: int) -> None:
        if epoch == 0:
            return  # everything: the rows themselves are the history
        floor = self._group.history_floor()
        if epoch < floor:
            raise FailedPreconditionError(
                f"{self._subject}: the changes after mark {epoch} were discarded up to mark {floor}, because no reader"
                " still needed them; start again from a cut"
            )

    def forget(self) -> None:
        """Discards what every reader has read, but nothing after an open cut: a reader may be opened at its mark."""
        with self._lock:
            positions = self._positions()
            if not positions:
                return
            cut = self._group.open_cut_epoch()
            self._group.truncate_history(min([*positions, *([] if cut is None else [cut])]))

    def close(self) -> None:
        """Closes all readers."""
        with self._lock:
            for name in list(self._readers):
                self.close_reader(name)


class LocalChangeReader:
    """`monolith.tables.ChangeReader` of rows in this process."""

    def __init__(self, history: LocalHistory, name: str, opened_at: ChangePosition) -> None:
        self._history = history
        self.name = name
        self._opened_at = opened_at

    @property
    def opened_at(self) -> ChangePosition:
        """A mark of the run in which the reader was opened."""
        return self._opened_at

    @property
    def mark(self) -> ChangePosition:
        """The mark up to which the reader has read."""
        return self._history.at(self._history.position_of(self))

    def next_mark(self) -> ChangePosition:
        """Closes the current epoch."""
        self._history.position_of(self)
        return self._history.mark()

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Yields tombstones and rows of everything touched after `mark`."""
        return self._history.changes(self._history.position_of(self), state=state, buckets=buckets)

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """Returns the blocks of `changes` in one buffer, by one call of the core."""
        return self._history.packed_changes(self._history.position_of(self), state=state, buckets=buckets)

    def advance(self, to: ChangePosition) -> None:
        """Records that everything up to `to` was read."""
        epoch, present = self._history.epoch_of(to), self._history.position_of(self)
        if epoch < present:
            raise FailedPreconditionError(
                f"reader {self.name!r}: it has read up to mark {present} and cannot go back to {epoch}"
            )
        self._history.advance(self.name, epoch)

    def close(self) -> None:
        """Removes this reader from the store."""
        if self._history.is_present(self.opened_at):
            self._history.close_reader(self.name)


class LastingReader(LocalChangeReader):
    """A `monolith.tables.ChangeReader` that stays valid across runs of the store."""

    def __init__(self, history: LocalHistory, name: str) -> None:
        super().__init__(history, name, history.at(0))

    @property
    def opened_at(self) -> ChangePosition:
        """A mark of the current run."""
        return self._history.at(0)

    def advance(self, to: ChangePosition) -> None:
        """Records that everything up to `to` was read; accepts marks of the previous run."""
        super().advance(self._history.at(to.epoch))
