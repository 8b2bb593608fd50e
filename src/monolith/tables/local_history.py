"""Marks and readers of the rows in this process, be they in one native group or in several that share the buckets."""

from __future__ import annotations

import secrets
import threading
from itertools import chain
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.forks import at_rest_in_forks
from monolith.tables.history import ALL_BUCKETS, Mark, bucket_bounds, shared_buckets
from monolith.tables.packed_blocks import PackedBlocks
from monolith.tables.row_block import RowBlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith import _core

_MOST_MARKS = 1 << 24
"""At once: some seconds of work; an owner that begins anew beside old ones needs as many as they have."""


def row_blocks(source: _core.BlockIterator) -> Iterator[RowBlock]:
    """The blocks of a native iterator."""
    while (data := next(source, None)) is not None:
        yield RowBlock(data)


class LocalHistory:
    """Which life this is, who follows it, and how far each follower has read. Any thread may call it.

    All groups have the same epochs: every mark and every cut closes one in each. The groups forget what is behind the
    slowest reader, or behind what the owner has written down; where nobody follows they keep no history at all.
    """

    def __init__(self, groups: Sequence[_core.Group], owned: Sequence[range], subject: str) -> None:
        self._groups = groups
        self._owned = owned
        self._subject = subject
        self._lock = at_rest_in_forks(threading.RLock())
        self._readers: dict[str, int] = {}
        """Name -> epoch up to which it has read."""
        self._lasting: set[str] = set()
        """Readers that are the owner's own, and outlive a life."""
        self._kept_from: int | None = None
        """The owner itself has written down everything up to here; None: it does not follow."""
        self._generation = 0
        self._life = secrets.randbits(63)

    def at(self, epoch: int) -> Mark:
        """A moment of this life."""
        return Mark(self._generation, self._life, epoch)

    def is_present(self, mark: Mark) -> bool:
        """Whether a mark is of this life."""
        return (mark.generation, mark.life) == (self._generation, self._life)

    def begin_life(self, generation: int) -> None:
        """After a rollback: what readers and marks speak of has not happened."""
        with self._lock:
            self.take_life(max(self._generation, generation) + 1, secrets.randbits(63))

    def take_life(self, generation: int, life: int) -> None:
        """Begins the life that somebody else has drawn, for all owners of a store."""
        with self._lock:
            for name in self._readers.keys() - self._lasting:
                self.close_reader(name)
            self._generation = generation
            self._life = life

    def mark(self) -> Mark:
        """Closes the present epoch of all groups."""
        with self._lock:
            epochs = [group.mark() for group in self._groups]
            # A cut that failed half way has closed an epoch in some of them.
            for group, epoch in zip(self._groups, epochs, strict=True):
                for _ in range(epoch, max(epochs)):
                    group.mark()
            return self.at(max(epochs))

    def mark_at(self, epoch: int) -> None:
        """Closes epochs up to this one, where that is still to come: owners elsewhere have it as their last one.

        Raises:
            InvalidArgumentError: it is so far ahead that it cannot be meant.
        """
        with self._lock:
            for group in self._groups:
                missing = epoch - group.last_mark()
                if missing > _MOST_MARKS:
                    raise InvalidArgumentError(
                        f"{self._subject}: mark {epoch} was asked for, {missing} ahead of the last one; at most"
                        f" {_MOST_MARKS} are made at once"
                    )
                for _ in range(missing):
                    group.mark()

    def epoch_of(self, mark: Mark) -> int:
        """The epoch of a mark of this life.

        Raises:
            FailedPreconditionError: it is of another one, or of the future.
        """
        if not isinstance(mark, Mark):
            raise TypeError(
                f"{self._subject}: expected a Mark, as mark(), a cut or a reader gives it, got {mark!r};"
                " leave it out to ask for all"
            )
        if not self.is_present(mark):
            raise FailedPreconditionError(
                f"{self._subject}: a mark of generation {mark.generation} is of another life of these tables, which are"
                f" at generation {self._generation} after a rollback or a new start; start again from a cut"
            )
        last = self._groups[0].last_mark()
        if not 0 <= mark.epoch <= last:
            raise FailedPreconditionError(
                f"{self._subject}: mark {mark.epoch} has not happened yet, the last one is {last}"
            )
        return mark.epoch

    def changes(self, since: int, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Tombstones and rows after an epoch, as they are now."""
        bucket_bounds(buckets)
        parts = [
            row_blocks(group.changes(since, bucket_bounds(shared_buckets(owned, buckets)), state))
            for group, owned in zip(self._groups, self._owned, strict=True)
        ]
        return chain.from_iterable(parts)

    def packed_changes(self, since: int, *, state: bool, buckets: range) -> PackedBlocks:
        """As `changes`, in one piece."""
        bucket_bounds(buckets)
        parts = [
            group.packed_changes(since, bucket_bounds(shared_buckets(owned, buckets)), state)
            for group, owned in zip(self._groups, self._owned, strict=True)
        ]
        return PackedBlocks(parts[0] if len(parts) == 1 else b"".join(parts))

    # Readers

    def open_reader(self, name: str, at: Mark | None) -> LocalChangeReader:
        """See `Store.open_reader`."""
        if not name:
            raise InvalidArgumentError(f"{self._subject}: a reader of changes needs a name, got {name!r}")
        with self._lock:
            if at is not None:
                epoch = self.epoch_of(at)
                self._require_kept(epoch)
                self._follow()
                self._readers[name] = epoch
                self.forget()  # it may have moved ahead
            elif name not in self._readers:
                self._follow()  # before the mark: what comes after it is kept
                self._readers[name] = self.mark().epoch
            return LocalChangeReader(self, name, self.at(self._readers[name]))

    def reader_epoch(self, name: str) -> int | None:
        """The epoch up to which a reader has read; None: there is none of this name."""
        with self._lock:
            return self._readers.get(name)

    def begin_reader(self, name: str, epoch: int) -> None:
        """A new reader, from a mark on that is made at this epoch; owners elsewhere make theirs at the same.

        Where that epoch is behind already, it begins at one more mark.
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
        """The epoch up to which it has read.

        Raises:
            FailedPreconditionError: it was closed, or its life has ended.
        """
        with self._lock:
            self.epoch_of(reader.opened_at)
            if reader.name not in self._readers:
                raise FailedPreconditionError(f"{self._subject}: reader {reader.name!r} was closed; open it again")
            return self._readers[reader.name]

    def advance(self, name: str, epoch: int) -> None:
        """It has read up to here: what every reader has read is forgotten."""
        with self._lock:
            self._readers[name] = epoch
            self.forget()

    def close_reader(self, name: str) -> None:
        """Forgets a reader."""
        with self._lock:
            self._lasting.discard(name)
            if self._readers.pop(name, None) is None:
                return
            self.forget()
            self._stop_following()

    # The owner itself

    def open_lasting_reader(self, name: str, at: Mark | None = None) -> LastingReader:
        """A reader of the owner's own: it goes on in the next life, in which the same rows have the same epochs."""
        with self._lock:
            self.open_reader(name, at)
            self._lasting.add(name)
            return LastingReader(self, name)

    def keep(self) -> int:
        """Keeps what changes from a mark on that is made now, whoever reads: unlike a reader it outlives a life."""
        with self._lock:
            self._follow()  # before the mark: what comes after it is kept
            self._kept_from = self.mark().epoch
            self.forget()
            return self._kept_from

    def keep_from(self, epoch: int) -> None:
        """What changed up to here need not be kept for the owner."""
        with self._lock:
            self._kept_from = epoch
            self.forget()

    def stop_keeping(self) -> None:
        """The owner does not follow any more."""
        with self._lock:
            self._kept_from = None
            self.forget()
            self._stop_following()

    def _positions(self) -> list[int]:
        """Of all that follow."""
        return [*self._readers.values(), *([] if self._kept_from is None else [self._kept_from])]

    def _stop_following(self) -> None:
        if not self._positions():
            for group in self._groups:
                group.follow_history(False)

    def _follow(self) -> None:
        if not self._positions():
            for group in self._groups:
                group.follow_history(True)

    def _require_kept(self, epoch: int) -> None:
        if epoch == 0:
            return  # everything: the rows tell by themselves
        floor = max(group.history_floor() for group in self._groups)
        if epoch < floor:
            raise FailedPreconditionError(
                f"{self._subject}: what changed after mark {epoch} was forgotten up to mark {floor}, because no reader"
                " had it still to read; start again from a cut"
            )

    def forget(self) -> None:
        """Drops what every reader has read, but nothing after an open cut: a reader may be opened at its mark."""
        with self._lock:
            positions = self._positions()
            for group in self._groups if positions else ():
                cut = group.open_cut_epoch()
                group.forget(min([*positions, *([] if cut is None else [cut])]))

    def close(self) -> None:
        """Ends all readers."""
        with self._lock:
            for name in list(self._readers):
                self.close_reader(name)


class LocalChangeReader:
    """`monolith.tables.store.ChangeReader` of rows in this process."""

    def __init__(self, history: LocalHistory, name: str, opened_at: Mark) -> None:
        self._history = history
        self.name = name
        self._opened_at = opened_at

    @property
    def opened_at(self) -> Mark:
        """A mark of its life."""
        return self._opened_at

    @property
    def mark(self) -> Mark:
        """It has read everything up to here."""
        return self._history.at(self._history.position_of(self))

    def next_mark(self) -> Mark:
        """Ends the present epoch."""
        self._history.position_of(self)
        return self._history.mark()

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Tombstones and rows of everything touched after `mark`."""
        return self._history.changes(self._history.position_of(self), state=state, buckets=buckets)

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """The blocks of `changes`, in one piece; one call of the core for each group."""
        return self._history.packed_changes(self._history.position_of(self), state=state, buckets=buckets)

    def advance(self, to: Mark) -> None:
        """Everything up to `to` was read."""
        epoch, present = self._history.epoch_of(to), self._history.position_of(self)
        if epoch < present:
            raise FailedPreconditionError(
                f"reader {self.name!r}: it has read up to mark {present} and cannot go back to {epoch}"
            )
        self._history.advance(self.name, epoch)

    def close(self) -> None:
        """The store forgets this reader."""
        if self._history.is_present(self.opened_at):
            self._history.close_reader(self.name)


class LastingReader(LocalChangeReader):
    """`monolith.tables.store.ChangeReader` that is of whatever life is in force."""

    def __init__(self, history: LocalHistory, name: str) -> None:
        super().__init__(history, name, history.at(0))

    @property
    def opened_at(self) -> Mark:
        """Of this life."""
        return self._history.at(0)

    def advance(self, to: Mark) -> None:
        """Everything up to `to` was read, be it in the life before."""
        super().advance(self._history.at(to.epoch))
