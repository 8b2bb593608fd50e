"""Consistent cuts of the rows on all servers, and restores of all servers together or of lost ones."""

from __future__ import annotations

import threading
import weakref
from itertools import chain
from typing import TYPE_CHECKING

from monolith.errors import CancelledError, FailedPreconditionError, OpError
from monolith.ps._wire_values import blocks_in, buckets_message, file_in, mark_message, stamp_in, write_message
from monolith.ps.server.push_gates import rows_owner
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import (
    ALL_BUCKETS,
    ChangePosition,
    OwnerClock,
    OwnersCut,
    PreparedRestore,
    WrittenRows,
    bucket_bounds,
    shared_buckets,
)
from monolith.tables.local import agreed_stamps
from monolith.tables.snapshot import RestoreReport, report_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from monolith import _core
    from monolith.ps.client.cluster import PsCluster
    from monolith.ps.client.store import PsStore
    from monolith.tables import SnapshotWriteConfig
    from monolith.tables.formats import RowBlock
    from monolith.tables.snapshot import SnapshotManifest, TableMatch

_LOOK_SECONDS = 0.05
"""Interval at which a write is checked for cancellation."""


class RemoteCut(OwnersCut):
    """`monolith.tables.Cut` of all servers. Thread-safe.

    Servers release the cut when the connection of this process ends.
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

    `keeps` is kept alive while the blocks are read.
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


class RemoteRestore(PreparedRestore):
    """`monolith.tables.store.PreparedRestore` of all servers.

    Servers cancel the restore when the connection of this process ends.
    """

    def __init__(
        self, store: PsStore, numbers: Sequence[int], *, manifest: SnapshotManifest, match: TableMatch
    ) -> None:
        self._store = store
        self._requests = [messages.TicketRequest(store=store.name, number=number) for number in numbers]
        self._manifest = manifest
        self._match = match

    def load(self) -> RestoreReport:
        """Replaces the rows of the servers."""
        answers = self._store.cluster.ask("LoadRestore", self._requests, timeout_seconds=None)
        self._store.refresh_newest_time()
        rows = {name: sum(answer.rows[name] for answer in answers) for name in self._store.native.names}
        return report_of(self._manifest, self._match, rows)

    def __exit__(self, *_: object) -> None:
        self._store.cluster.tell("DropRestore", self._requests)


class RemoteOwners:
    """`monolith.tables.store.RowOwners` of the rows on servers. Thread-safe.

    A server has state once a chief has marked it as initialized. The mark is lost with the process, as the rows are.
    """

    def __init__(self, store: PsStore) -> None:
        self._store = store
        self._name = rows_owner(store.name)
        self.owned = store.owned

    def uninitialized(self) -> list[int]:
        """Returns the servers without state; opens the store, without rows, on restarted servers first."""
        self._store.open_at_new_servers()
        return self._store.cluster.uninitialized(self._name)

    def set_initialized(self) -> None:
        """Marks all servers as initialized: their state was restored, or a run begins with it."""
        self._store.open_at_new_servers()
        moments = self._store.cluster.ask("Moment", messages.StoreRequest(store=self._store.name))
        lives = {(moment.life.generation, moment.life.life) for moment in moments}
        if len(lives) > 1:  # without a checkpoint a restarted server begins empty
            self._begin_life(generation=0)
        self._store.cluster.set_initialized(self._name)

    def resume(self, lost: Sequence[int], *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Resumes lost servers at the batches of a saved run; the others are unchanged.

        Earlier marks and readers are rejected from now on, because changes of lost servers are unknown. Workers have to
        join again, and resume after the least advanced server.

        Raises:
            FailedPreconditionError: the saved state cannot be divided among the current servers.
        """
        stamps = {index: agreed_stamps(applied, self.owned[index]) for index in lost}
        life = self._begin_life(generation=generation)
        for index, own in stamps.items():
            self._store.cluster.ask_one(index, "Resume", self._store.resume_request(own, life))
        self._store.refresh_newest_time()

    def _begin_life(self, *, generation: int) -> messages.Life:
        """Sets a new common `life` on all servers."""
        life = self._store.next_life(generation)
        self._store.take_life(life)
        return life
