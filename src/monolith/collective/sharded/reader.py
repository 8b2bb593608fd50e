"""A named reader of the changes of all ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from monolith.collective.sharded.outcome import settled
from monolith.collective.sharded.values import pack, unpack
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.formats.packed_blocks import PackedBlocks
from monolith.tables.history import ALL_BUCKETS, ChangePosition, bucket_bounds
from monolith.tables.local.history import LocalChangeReader, LocalHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.collective.sharded.blocks import BlockStreams
    from monolith.collective.sharded.calls import RankCalls
    from monolith.tables.formats.row_block import RowBlock

__all__ = ["ReaderCalls", "ShardedReader"]


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
        found: list[ChangePosition] = []

        def opened() -> bytes:
            found.append(self._history.open_reader(name, None if at is None else ChangePosition(*at)).opened_at)
            return b""

        settled(self._training.wire, opened)
        return found[0]

    def _next_mark(self, arguments: bytes, _: object) -> ChangePosition:
        reader, _rest = self._reader(arguments)
        found: list[ChangePosition] = []

        def marked() -> bytes:
            found.append(reader.next_mark())
            return b""

        settled(self._training.wire, marked)
        return found[0]

    def _advance(self, arguments: bytes, _: object) -> None:
        reader, (to,) = self._reader(arguments)
        settled(self._training.wire, partial(_done, partial(reader.advance, ChangePosition(*to))))

    def _close(self, arguments: bytes, _: object) -> None:
        reader, _rest = self._reader(arguments)
        settled(self._training.wire, partial(_done, reader.close))

    def _changes(self, arguments: bytes, _: object) -> int:
        reader, (state, begin, end) = self._reader(arguments)
        return self._streams.open(lambda: reader.changes(state=state, buckets=range(begin, end)))

    def _reader(self, arguments: bytes) -> tuple[LocalChangeReader, list[Any]]:
        (name, opened_at, *rest), _blobs = unpack(arguments)
        return LocalChangeReader(self._history, name, ChangePosition(*opened_at)), rest


class ShardedReader:
    """`monolith.tables.store.ChangeReader` of all ranks: all of them read together. Thread-safe."""

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


def _done(call: Callable[[], None]) -> bytes:
    call()
    return b""
