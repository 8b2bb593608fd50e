"""Consistent cuts of the rows on all servers, and named readers of their changes."""

from __future__ import annotations

import threading
import weakref
from itertools import chain
from typing import TYPE_CHECKING

from monolith.errors import CancelledError, FailedPreconditionError, InvalidArgumentError, OpError
from monolith.ps._wire_values import blocks_in, buckets_message, file_in, mark_message, stamp_in, write_message
from monolith.rpc import outcomes_of
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import (
    ALL_BUCKETS,
    ChangePosition,
    OwnerClock,
    OwnersCut,
    WrittenRows,
    bucket_bounds,
    shared_buckets,
)
from monolith.tables.formats import PackedBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from monolith import _core
    from monolith.ps.client.cluster import PsCluster
    from monolith.ps.client.store import PsStore
    from monolith.tables import SnapshotWriteConfig
    from monolith.tables.formats import RowBlock

_LOOK_SECONDS = 0.05
"""Interval at which a write is checked for cancellation."""


class RemoteCut(OwnersCut):
    """`monolith.tables.Cut` of all servers. Thread-safe.

    Servers release the cut when the connection of this process ends.

    Args:
        cluster: The servers.
        store: Name of the store.
        names: Names of its tables, in order.
        mark: Position of the cut in the history.
        answers: Answers of the servers that made the cut.
    """

    def __init__(
        self, cluster: PsCluster, store: str, *, names: Sequence[str], mark: ChangePosition, answers: Sequence[Any]
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._names = names
        self._numbers = [answer.number for answer in answers]
        applied = [
            OwnerClock(owned, {stamp.worker: stamp_in(stamp) for stamp in answer.stamps})
            for owned, answer in zip(cluster.owned, answers, strict=True)
        ]
        rows = self._by_table([sum(rows) for rows in zip(*(answer.rows for answer in answers), strict=True)])
        super().__init__(mark=mark, applied=applied, rows=rows)
        requests = [messages.CutRequest(store=store, number=number) for number in self._numbers]
        self._release = weakref.finalize(self, cluster.tell, "ReleaseCut", requests)
        self._release.atexit = False  # the end of the process releases the cut anyway

    def blocks(
        self, buckets: range = ALL_BUCKETS, *, state: bool = True, since: ChangePosition | None = None
    ) -> Iterator[RowBlock]:
        """Reads the blocks of some buckets; each bucket once per cut."""
        bucket_bounds(buckets)
        self._require_open()
        if since is not None and (since.generation, since.life) == self._mark[:2] and since.epoch > self._mark.epoch:
            raise FailedPreconditionError(
                f"cut: mark {since.epoch} comes after this cut, which is of mark {self._mark.epoch}; ask a reader"
                " instead"
            )
        self._take(buckets)
        requests = [
            messages.CutBlocksRequest(
                store=self._store,
                number=number,
                buckets=buckets_message(shared_buckets(owned, buckets)),
                state=state,
                since=None if since is None else mark_message(since),
            )
            for owned, number in zip(self._cluster.owned, self._numbers, strict=True)
        ]
        try:
            return open_blocks(self._cluster, "CutBlocks", requests, keeps=self)
        except BaseException:
            self._give_back(buckets)
            raise

    def write(self, folder: str, rules: SnapshotWriteConfig, *, transfer: _core.Transfer | None = None) -> WrittenRows:
        """Writes the bucket files of all servers, concurrently."""
        self._require_open()
        requests = [write_message(self._store, number, folder, rules) for number in self._numbers]
        calls = self._cluster.begin("WriteCut", requests, timeout_seconds=None)
        looked = threading.Event()
        for call in calls:
            call.on_done(looked.set)
        failure: OpError | None = None
        """The first failure: later ones are of servers whose write was cancelled."""
        has_given_up = False
        while not all(call.done() for call in calls):
            looked.wait(_LOOK_SECONDS)
            looked.clear()
            failure = failure or _first_failure(calls)
            if not has_given_up and (_is_cancelled(transfer) or failure is not None):
                has_given_up = True
                self._give_up_write()
        failure = failure or _first_failure(calls)
        if failure is not None or _is_cancelled(transfer):
            self._give_up_write()
        if _is_cancelled(transfer):
            raise CancelledError(f"cut: writing it to '{folder}' was cancelled")
        if failure is not None:
            raise failure
        return self._written([call.result() for call in calls])

    def release(self) -> None:
        """Makes the servers discard the old row images. Idempotent."""
        self._release()

    def _require_open(self) -> None:
        if not self._release.alive:
            raise FailedPreconditionError("cut: it was released; take another one")

    def _give_up_write(self) -> None:
        """Makes each server cancel its write and remove its files."""
        self._cluster.tell(
            "GiveUpWrite", [messages.CutRequest(store=self._store, number=number) for number in self._numbers]
        )

    def _written(self, answers: Sequence[Any]) -> WrittenRows:
        return WrittenRows(
            files=[file_in(file) for answer in answers for file in answer.files],
            rows=self._by_table([sum(rows) for rows in zip(*(answer.rows for answer in answers), strict=True)]),
            newest_times=self._by_table(
                [max(times) for times in zip(*(answer.newest_times for answer in answers), strict=True)]
            ),
        )

    def _by_table(self, numbers: Sequence[int]) -> dict[str, int]:
        return dict(zip(self._names, numbers, strict=True))


def open_blocks(cluster: PsCluster, method: str, requests: Sequence[Any], *, keeps: object) -> Iterator[RowBlock]:
    """Yields the blocks of all servers, one after the other; this call itself raises if a server rejects its request.

    Args:
        cluster: The servers.
        method: A call that answers with blocks.
        requests: One for each server.
        keeps: Object to keep alive while the blocks are read.
    """
    streams = [cluster.channel(index).open_stream(method, request) for index, request in enumerate(requests)]
    parts = [cluster.channel(index).answers(stream, method) for index, stream in enumerate(streams)]
    try:
        for part in parts:
            next(part)  # the first answer confirms that the requested blocks exist
    except BaseException:
        for stream in streams:
            stream.cancel()
        raise
    return _blocks(streams, parts, keeps)


def _blocks(streams: Sequence[Any], parts: Sequence[Iterator[Any]], keeps: object) -> Iterator[RowBlock]:
    try:
        yield from chain.from_iterable(blocks_in(part) for part in parts)
    finally:
        for stream in streams:
            stream.cancel()  # no effect after the end of the stream
        del keeps


def _is_cancelled(transfer: _core.Transfer | None) -> bool:
    return transfer is not None and transfer.cancelled


def _first_failure(calls: Sequence[Any]) -> OpError | None:
    """Returns the first error of the calls that have ended."""
    return next((error for error in (_failed(call) for call in calls if call.done()) if error is not None), None)


def _failed(call: Any) -> OpError | None:
    try:
        call.result()
    except OpError as error:
        return error
    return None


_SUBJECT = "parameter servers"


class RemoteReader:
    """`monolith.tables.ChangeReader` of all servers. Thread-safe.

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
    answers = store.cluster.ask("OpenReader", messages.OpenReaderRequest(store=store.name, name=name))
    known = [answer.is_known for answer in answers]
    if not any(known):
        epoch = max(moment.epoch for moment in moments) + 1
        _open_on_all(store, messages.OpenReaderRequest(store=store.name, name=name, epoch=epoch))
        return RemoteReader(store, name, ChangePosition(moments[0].life.generation, moments[0].life.life, epoch))
    if not all(known):
        some = ", ".join(str(index) for index, is_known in enumerate(known) if not is_known)
        raise FailedPreconditionError(
            f"reader {name!r}: it is missing on servers {some}: a server was restarted, or the client that opened it"
            " died meanwhile. Open it at the mark of a cut"
        )
    epoch = min(answer.epoch for answer in answers)
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
