"""A named reader of the changes of all ranks, and the publisher of the changes of one rank.

Every rank has a `part` of the log, and rank 0 the dense weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.collective.sharded.calls import pack, settled_here, unpack
from monolith.deltalog import rows_part
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import ALL_BUCKETS, ChangePosition, bucket_bounds
from monolith.tables.formats import PackedBlocks
from monolith.tables.local import LocalChangeReader, LocalHistory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.collective.sharded.calls import BlockStreams, RankCalls
    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish import LocalPublisher, Trained
    from monolith.tables.formats import RowBlock


class ReaderCalls:
    """The calls of each rank for the readers of a store; all ranks have the same epochs and the same readers."""

    def __init__(self, training: RankCalls, saving: RankCalls, streams: BlockStreams, history: LocalHistory) -> None:
        self._training = training
        self._saving = saving
        self._streams = streams
        self._history = history
        self.is_closed = False
        training.define("open reader of", self._open)
        training.define("next mark of", self._next_mark)
        training.define("advance reader of", self._advance)
        training.define("close reader of", self._close)
        saving.define("changes of", self._changes)

    def open(self, name: str, at: ChangePosition | None) -> ShardedReader:
        """Opens a reader; see `Store.open_reader`."""
        if at is not None and not isinstance(at, ChangePosition):
            raise TypeError(f"sharded store: expected a Mark, as a cut or a reader gives it, got {at!r}")
        mark = self._training.run("open reader of", pack([name, None if at is None else list(at)]))
        return ShardedReader(self, LocalChangeReader(self._history, name, mark))

    def run(self, kind: str, reader: LocalChangeReader, *arguments: Any) -> Any:
        """Makes a call on a reader."""
        self._require_open(reader)
        return self._training.run(kind, pack([reader.name, list(reader.opened_at), *arguments]))

    def changes(self, reader: LocalChangeReader, *, state: bool, buckets: range) -> Iterator[RowBlock]:
        """Yields the changes of all ranks."""
        begin, end = bucket_bounds(buckets)
        self._require_open(reader)
        arguments = pack([reader.name, list(reader.opened_at), state, begin, end])
        return self._streams.blocks(self._saving.run("changes of", arguments))

    def _require_open(self, reader: LocalChangeReader) -> None:
        if self.is_closed:
            raise FailedPreconditionError(f"reader {reader.name!r}: its store was closed; open both again")

    # In the line

    def _open(self, arguments: bytes, _: object) -> ChangePosition:
        (name, at), _blobs = unpack(arguments)
        position = None if at is None else ChangePosition(*at)
        return settled_here(self._training.wire, lambda: self._history.open_reader(name, position).opened_at)

    def _next_mark(self, arguments: bytes, _: object) -> ChangePosition:
        reader, _rest = self._reader(arguments)
        return settled_here(self._training.wire, reader.next_mark)

    def _advance(self, arguments: bytes, _: object) -> None:
        reader, (to,) = self._reader(arguments)
        settled_here(self._training.wire, lambda: reader.advance(ChangePosition(*to)))

    def _close(self, arguments: bytes, _: object) -> None:
        reader, _rest = self._reader(arguments)
        settled_here(self._training.wire, reader.close)

    def _changes(self, arguments: bytes, _: object) -> int:
        reader, (state, begin, end) = self._reader(arguments)
        return self._streams.open(lambda: reader.changes(state=state, buckets=range(begin, end)))

    def _reader(self, arguments: bytes) -> tuple[LocalChangeReader, list[Any]]:
        (name, opened_at, *rest), _blobs = unpack(arguments)
        return LocalChangeReader(self._history, name, ChangePosition(*opened_at)), rest


class ShardedReader:
    """`monolith.tables.ChangeReader` of all ranks: all of them read together. Thread-safe."""

    def __init__(self, calls: ReaderCalls, local: LocalChangeReader) -> None:
        self._calls = calls
        self._local = local
        self.name = local.name

    @property
    def mark(self) -> ChangePosition:
        """Position of the reader: all changes up to it were read; the same on all ranks."""
        return self._local.mark

    def next_mark(self) -> ChangePosition:
        """Ends the current epoch of all ranks."""
        mark: ChangePosition = self._calls.run("next mark of", self._local)
        return mark

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Yields tombstones and rows of everything touched after `mark`; every rank gets those of all."""
        return self._calls.changes(self._local, state=state, buckets=buckets)

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """Returns the blocks of `changes`, in one piece."""
        return PackedBlocks.of(self.changes(state=state, buckets=buckets))

    def advance(self, to: ChangePosition) -> None:
        """Records that everything up to `to` was read."""
        if not isinstance(to, ChangePosition):
            raise InvalidArgumentError(f"reader {self.name!r}: expected a Mark, got {to!r}")
        self._calls.run("advance reader of", self._local, list(to))

    def close(self) -> None:
        """Closes this reader on all ranks. Does nothing when its store is closed."""
        if not self._calls.is_closed:
            self._calls.run("close reader of", self._local)


class ShardedPublisher:
    """`monolith.deltalog.publish.StorePublisher` of the rows of one rank."""

    has_own_clock = False

    def __init__(self, name: str, log: DeltaLog, owned: Sequence[range], own: LocalPublisher | None) -> None:
        self._log = log
        self._of_all = [rows_part(name, buckets) for buckets in owned if buckets]
        self._own = own

    @property
    def numbers(self) -> dict[str, int]:
        """The `part` of this rank -> number of its last increment."""
        return {} if self._own is None else self._own.numbers

    def open(self) -> None:
        """Claims the `part` of this rank."""
        if self._own is not None:
            self._own.open()

    def publish(self, trained: Trained) -> int:
        """Writes the changes of this rank."""
        return 0 if self._own is None else self._own.publish(trained)

    def needs(self) -> dict[str, int]:
        """Returns how far all ranks have logged; the logs of other ranks may lack changes of this interval."""
        extents = {part: self._log.extent(part) for part in self._of_all}
        return {part: extent.next - 1 for part, extent in extents.items() if extent is not None}

    def before_cut(self) -> dict[str, int]:
        """Returns the numbers of this rank; the other ranks report theirs."""
        return {} if self._own is None else self._own.before_cut()

    def after_cut(self, mark: ChangePosition) -> dict[str, ChangePosition]:
        """Returns the mark of this rank; the other ranks report theirs."""
        return {} if self._own is None else self._own.after_cut(mark)

    def close(self) -> None:
        """Stops publishing."""
        if self._own is not None:
            self._own.close()
