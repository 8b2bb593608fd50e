"""A named reader of the changes on all servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ps._wire_values import buckets_message, mark_message
from monolith.ps.client.remote_cut import open_blocks
from monolith.rpc.channel import outcomes_of
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables.formats.row_block import PackedBlocks
from monolith.tables.history import ALL_BUCKETS, ChangePosition, bucket_bounds, shared_buckets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.ps.client.store import PsStore
    from monolith.tables.formats.row_block import RowBlock

__all__ = ["RemoteReader", "open_reader"]

_SUBJECT = "parameter servers"


class RemoteReader:
    """`monolith.tables.store.ChangeReader` of all servers. Thread-safe.

    Each server stores its own read position; the mark of the reader is that of the least advanced server.
    """

    def __init__(self, store: PsStore, name: str, opened_at: ChangePosition) -> None:
        self._store = store
        self._cluster = store.cluster
        self.name = name
        self._opened_at = opened_at

    @property
    def mark(self) -> ChangePosition:
        """Everything up to this mark was read."""
        answers = self._cluster.ask("ReaderPosition", self._message())
        return self._opened_at._replace(epoch=min(answer.epoch for answer in answers))

    def next_mark(self) -> ChangePosition:
        """Ends the current epoch of all servers."""
        epoch = max(moment.epoch for moment in self._store.moments()) + 1
        self._cluster.ask("MarkAt", messages.MarkAtRequest(reader=self._message(), epoch=epoch))
        return self._opened_at._replace(epoch=epoch)

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Returns tombstones and rows of everything touched after `mark`."""
        bucket_bounds(buckets)
        requests = [
            messages.ChangesRequest(
                reader=self._message(), buckets=buckets_message(shared_buckets(owned, buckets)), state=state
            )
            for owned in self._cluster.owned
        ]
        return open_blocks(self._cluster, "Changes", requests, keeps=self)

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """Returns the blocks of `changes`, packed into one object."""
        return PackedBlocks.of(self.changes(state=state, buckets=buckets))

    def advance(self, to: ChangePosition) -> None:
        """Marks everything up to `to` as read."""
        present = self.mark
        if to[:2] == present[:2] and to.epoch < present.epoch:
            raise FailedPreconditionError(
                f"reader {self.name!r}: it has read up to mark {present.epoch} and cannot go back to {to.epoch}"
            )
        self._cluster.ask("Advance", messages.AdvanceRequest(reader=self._message(), to=mark_message(to)))

    def close(self) -> None:
        """Removes the reader on the servers; after a close of the store, only this client of the reader is closed."""
        if self._store.is_closed:
            return
        self._cluster.ask("CloseReader", self._message())

    def _message(self) -> messages.ReaderRequest:
        if self._store.is_closed:
            raise FailedPreconditionError(f"reader {self.name!r}: its store was closed; open both again")
        return messages.ReaderRequest(store=self._store.name, name=self.name, opened_at=mark_message(self._opened_at))


def open_reader(store: PsStore, name: str, at: ChangePosition | None) -> RemoteReader:
    """Opens a reader; see `Store.open_reader`."""
    if not name:
        raise InvalidArgumentError(f"{_SUBJECT}: a reader of changes needs a name, got {name!r}")
    if at is not None and not isinstance(at, ChangePosition):
        raise TypeError(f"{_SUBJECT}: expected a Mark, as a cut or a reader gives it, got {at!r}")
    if at is not None:
        _open_on_all(store, messages.OpenReaderRequest(store=store.name, name=name, at=mark_message(at)))
        return RemoteReader(store, name, at)
    moments = store.moments()
    found = store.cluster.ask("OpenReader", messages.OpenReaderRequest(store=store.name, name=name))
    known = [answer.is_known for answer in found]
    if not any(known):
        epoch = max(moment.epoch for moment in moments) + 1
        _open_on_all(store, messages.OpenReaderRequest(store=store.name, name=name, epoch=epoch))
        return RemoteReader(store, name, ChangePosition(moments[0].life.generation, moments[0].life.life, epoch))
    if not all(known):
        some = ", ".join(str(index) for index, each in enumerate(known) if not each)
        raise FailedPreconditionError(
            f"reader {name!r}: it is missing on servers {some}: a server was restarted, or the client that opened it"
            " died meanwhile. Open it at the mark of a cut"
        )
    epoch = min(answer.epoch for answer in found)
    return RemoteReader(store, name, ChangePosition(moments[0].life.generation, moments[0].life.life, epoch))


def _open_on_all(store: PsStore, request: messages.OpenReaderRequest) -> None:
    """Opens a reader on all servers; if one rejects it, removes it from those that did not have it before."""
    answers, errors = outcomes_of(store.cluster.begin("OpenReader", request))
    if not errors:
        return
    life = store.moments()[0].life
    close = messages.ReaderRequest(
        store=store.name, name=request.name, opened_at=messages.Mark(generation=life.generation, life=life.life)
    )
    store.cluster.tell(
        "CloseReader", [close if answer is not None and not answer.was_known else None for answer in answers]
    )
    raise errors[0]
