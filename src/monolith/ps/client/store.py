"""Rows on parameter servers as a `monolith.tables.store.Store`."""

from __future__ import annotations

import logging
import secrets
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ps._wire_values import buckets_message, messages_of, stamp_message, stats_in
from monolith.ps.agreement import agreement_of, digest_of
from monolith.ps.client.cluster import PsCluster
from monolith.ps.client.joined import PendingRows, PsWorkerSession
from monolith.ps.client.remote_changes import RemotePublisher, RemoteReader, open_reader
from monolith.ps.client.remote_cut import RemoteCut, RemoteOwners, RemoteRestore
from monolith.ps.server.push_gates import rows_owner
from monolith.rpc import outcomes_of
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import (
    ALL_BUCKETS,
    NUM_BUCKETS,
    ChangePosition,
    EventClock,
    LoadReport,
    OwnerClock,
    StoreStats,
    Traits,
    bucket_array,
    bucket_bounds,
    emptied_by,
    id_array,
    made_from,
    new_rows,
    require_assignable,
    shared_buckets,
    stats_of_all,
    sum_by_slot,
    sum_of_reports,
    time_array,
)
from monolith.tables.local import NO_TICKET, NativeStore, NativeTables, OpenPlans, RemotePlan, agreed_stamps
from monolith.tables.snapshot import match_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish import StorePublishingConfig
    from monolith.tables import BatchStamp, Pending, Plan, Rows, TableConfig
    from monolith.tables.formats import RowBlock
    from monolith.tables.snapshot import SnapshotManifest

_log = logging.getLogger(__name__)
_SUBJECT = "parameter servers"
_NOBODY, _NOTHING = -1, -1
_IDS_PER_MESSAGE = 1 << 20


class _NewestTime:
    """Unix seconds, returned by a call. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0

    def __call__(self) -> int:
        """Returns the newest known time."""
        return self._seconds

    def raise_to(self, seconds: int) -> None:
        """Raises the time, after it was seen in an answer or an update."""
        if seconds > self._seconds:
            with self._lock:
                self._seconds = max(self._seconds, seconds)

    def set(self, seconds: int) -> None:
        """Sets the time, after the rows were replaced."""
        with self._lock:
            self._seconds = seconds


def _configure_store(cluster: PsCluster, name: str, agreement: bytes) -> None:
    """Creates or opens a store. Server 0 decides its `life`, also between two clients that create it concurrently.

    Restarted servers that are yet to be restored get a `life` of their own, and are skipped in that decision.
    """
    lost = cluster.uninitialized(rows_owner(name))
    kept = [index for index in range(cluster.num_ps) if index not in lost] or list(range(cluster.num_ps))
    request = _configuration(name, agreement)
    first = cluster.ask_one(kept[0], "Configure", request)
    request.life.CopyFrom(first.life)
    requests = [request if index in kept else _configuration(name, agreement) for index in range(cluster.num_ps)]
    for index, answer in enumerate(cluster.ask("Configure", requests)):
        if index not in kept:
            _log.warning("parameter servers: server %d was restarted without its state; restore it before use", index)
        elif answer.life.generation > first.life.generation:
            # Another client is resuming the store and has reached this server before server 0: its run id stays.
            _log.info("parameter servers: store %r is being resumed by another client", name)
        elif answer.life != first.life:
            _log.warning(
                "parameter servers: on server %d, store %r has another run id than on server 0: one of them was"
                " restarted; restore a checkpoint",
                index,
                name,
            )
            request.adopt = True
            cluster.ask_one(index, "Configure", request)


def _configuration(name: str, agreement: bytes, *, adopted: messages.Life | None = None) -> messages.ConfigureRequest:
    """Returns the request that creates a store if missing; an existing store gets the `life` in `adopted`, if given."""
    return messages.ConfigureRequest(
        store=name,
        agreement=agreement,
        life=adopted or messages.Life(generation=0, life=secrets.randbits(63)),
        adopt=adopted is not None,
    )


class PsStore(NativeStore[RemotePlan]):
    """`monolith.tables.store.Store` with its rows on parameter servers; see the page on parameter servers.

    The first process that opens a store of this name creates it; other processes must have the same tables.

    Args:
        configs: The tables by name.
        servers: The servers, or the addresses of all of them in the order of their index.
        name: Name of the store; a model with several `Embeddings` needs one for each.
        wire: Encoding of rows and gradients. ``fp16`` halves the bytes, and rounds each value to 11 bits.

    Raises:
        FailedPreconditionError: the tables differ from those of the process that opened the store first; shows the
            difference.
    """

    subject = _SUBJECT
    plan_kind = RemotePlan

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        servers: PsCluster | Sequence[str],
        name: str = "rows",
        wire: Literal["fp32", "fp16"] = "fp32",
    ) -> None:
        if wire not in {"fp32", "fp16"}:
            raise InvalidArgumentError(f"{_SUBJECT}: wire must be 'fp32' or 'fp16', got {wire!r}")
        self.native = NativeTables(configs)
        """The tables without rows, for plans and sizes."""
        self.name = name
        self._wire = wire
        self.traits = Traits(remote=True, exact=wire == "fp32")
        self._agreement = agreement_of(configs)
        self.plans = OpenPlans(_SUBJECT)
        """Open training plans of this process."""
        self.newest_time = _NewestTime()
        self.steps_of_others = -1
        """Batches of all other workers in the last answer of server 0; -1: no answer yet."""
        self.event_clock = EventClock(self.newest_time)
        self.is_closed = False
        self._owns_cluster = not isinstance(servers, PsCluster)
        self.cluster = servers if isinstance(servers, PsCluster) else PsCluster(servers)
        """The servers."""
        self.owned = self.cluster.owned
        """Bucket range of each server."""
        self.timeout_seconds = self.cluster.timeout_seconds
        try:
            _configure_store(self.cluster, name, self._agreement)
            self.rows = self._row_client(any(config.filters_ids for config in configs.values()))
            """Client of the workers' calls to the rows."""
        except BaseException:
            if self._owns_cluster:
                self.cluster.close()
            raise
        self.cluster.on_move(self._follow)

    @property
    def owners(self) -> RemoteOwners:
        """The servers, for a restore of those that were lost."""
        return RemoteOwners(self)  # not cached: a reference cycle would delay the release of an unused store

    @property
    def frames_words(self) -> list[bytes]:
        """Handshake of a worker with each server."""
        digest = digest_of(self._agreement)
        return [b"rows\n%s\n%d %d\n%s" % (self.name.encode(), owned.start, owned.stop, digest) for owned in self.owned]

    # Batches

    def join(self, worker: int) -> PsWorkerSession:
        """Begins an incarnation of a worker, on every server."""
        if worker < 0:
            raise InvalidArgumentError(f"{_SUBJECT}: worker must be >= 0, got {worker}")
        return PsWorkerSession(self, worker)

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Reads the current rows."""
        own = self.own(plan)
        values = new_rows((own.num_values,))
        pull = self.rows.new_pull(
            own.core, values, worker=_NOBODY, incarnations=[], after=_NOTHING, step=step, ticket=NO_TICKET
        )
        pull.begin(self.timeout_seconds)
        return PendingRows(self, pull, values)

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> RemoteCut:
        """Freezes the rows and stamps of all servers, after the same batches."""
        with self.cluster.held():
            moments = self.moments()
            epoch = max(moment.epoch for moment in moments) + 1
            request = messages.CutAtRequest(
                store=self.name, client=self.cluster.client, epoch=epoch, newest_times=_newest_times(moments)
            )
            answers = self._open("CutAt", request, undo="ReleaseCut", timeout_seconds=timeout_seconds)
        life = moments[0].life
        mark = ChangePosition(life.generation, life.life, epoch)
        return RemoteCut(self.cluster, self.name, names=self.native.names, mark=mark, answers=answers)

    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> RemoteReader:
        """Opens a reader of the changes of all servers."""
        return open_reader(self, name, at)

    def open_publisher(self, name: str, log: DeltaLog, publishing_config: StorePublishingConfig) -> RemotePublisher:
        """Makes the servers publish changes: see `monolith.deltalog.publish.PublishedRows`."""
        return RemotePublisher(self.cluster, self.name, name, log, publishing_config)

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Marks rows as changed, and absent ids as removed."""
        for requests in self._requests_of_ids(messages.TouchRequest, table, ids, buckets):
            self.cluster.ask("Touch", requests)

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes rows and admission counts; returns the number of removed rows."""
        return sum(
            answer.rows
            for requests in self._requests_of_ids(messages.EraseRequest, table, ids, buckets)
            for answer in self.cluster.ask("Erase", requests)
        )

    # Saving and restoring

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows, tombstones and filters of some buckets, after every server has checked its own."""
        bucket_bounds(buckets)
        all_blocks = list(blocks)
        orders = [self._load_order(shared_buckets(owned, buckets), buckets, replace=replace) for owned in self.owned]
        parts = [
            [block for block in all_blocks if block.bucket in shared_buckets(owned, buckets)] for owned in self.owned
        ]
        streams: list[Any] = [
            _ordered(messages.CheckBlocksRequest, order, part) for order, part in zip(orders, parts, strict=True)
        ]
        checked = self._open("CheckBlocks", streams, undo="DropLoad")
        tickets = [messages.TicketRequest(store=self.name, number=answer.number) for answer in checked]
        answers = self.cluster.ask("Load", tickets, timeout_seconds=None)
        self.refresh_newest_time()
        outside = sum(max(1, block.count) for block in all_blocks if block.bucket not in buckets)
        return sum_of_reports([*(made_from(LoadReport, answer) for answer in answers), LoadReport(ignored=outside)])

    def prepare_restore(
        self,
        folder: str,
        manifest: SnapshotManifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> RemoteRestore:
        """Reads and checks the files of some buckets, each server those of its own."""
        bucket_bounds(buckets)
        self.open_at_new_servers()
        match = match_tables(
            manifest, self.schema.tables, ignore_unknown_tables=ignore_unknown_tables, origin=f"folder '{folder}'"
        )
        text = manifest.to_bytes()
        requests: list[Any] = [
            messages.PrepareRestoreRequest(
                store=self.name,
                client=self.cluster.client,
                folder=folder,
                manifest=text,
                buckets=buckets_message(shared_buckets(owned, buckets)),
                emptied=buckets_message(emptied_by(shared_buckets(owned, buckets), buckets)),
                ignore_unknown_tables=ignore_unknown_tables,
            )
            for owned in self.owned
        ]
        answers = self._open("PrepareRestore", requests, undo="DropRestore")
        return RemoteRestore(self, [answer.number for answer in answers], manifest=manifest, match=match)

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Resumes at the batches of a saved run; rejects earlier marks, readers and workers from now on."""
        stamps = [agreed_stamps(applied, owned) for owned in self.owned]
        life = self.next_life(generation)
        self.cluster.ask("Resume", [self.resume_request(own, life) for own in stamps])
        self.refresh_newest_time()

    # All servers

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites, or adds to, the weights of a full block's ids; optimizer state stays."""
        require_assignable(block, self.schema, subject=_SUBJECT)
        self.refresh_newest_time()
        bounded = self.event_clock.bounded(block.times.astype(np.int64))
        order = messages.AssignOrder(
            store=self.name, times=np.ascontiguousarray(bounded.times, "<i8").tobytes(), add=add
        )
        owner = block.bucket * len(self.owned) // NUM_BUCKETS
        self.cluster.ask_one(owner, "Assign", _ordered(messages.AssignRequest, order, [block]))
        self.event_clock.count(bounded)
        self.newest_time.raise_to(int(bounded.times.max(initial=0)))

    def evict(self, *, now: int) -> int:
        """Removes expired rows; returns their number. `now` -1 means each table's newest time, over all servers."""
        checked = now if now == -1 else int(time_array(now, (), _SUBJECT)[0])
        request = messages.EvictRequest(store=self.name, now=checked, newest_times=_newest_times(self.moments()))
        return sum(answer.rows for answer in self.cluster.ask("Evict", request, timeout_seconds=None))

    def stats(self) -> StoreStats:
        """Returns the statistics of all tables."""
        parts = [stats_in(answer) for answer in self.cluster.ask("Situation", messages.StoreRequest(store=self.name))]
        return stats_of_all(parts, open_plans=self.plans.count, times_ahead=self.event_clock.num_ahead)

    def rows_by_slot(self, table: str) -> dict[int, int]:
        """Returns slot -> number of rows, counted by the servers."""
        self.native.number_of(table)
        request = messages.RowsBySlotRequest(store=self.name, table=table)
        return sum_by_slot(answer.rows for answer in self.cluster.ask("RowsBySlot", request, timeout_seconds=None))

    def close(self) -> None:
        """Closes the connections of this process; servers keep the rows, and readers by their names."""
        self.is_closed = True
        self.rows.close()
        if self._owns_cluster:
            self.cluster.close()

    # For helper classes

    def moments(self) -> list[Any]:
        """Returns epoch, newest times and `life` of each server.

        Raises:
            FailedPreconditionError: the servers differ in `life`: one of them was restarted.
        """
        moments = self.cluster.ask("Moment", messages.StoreRequest(store=self.name))
        for index, moment in enumerate(moments):
            if moment.life != moments[0].life:
                raise FailedPreconditionError(
                    f"{_SUBJECT}: the run id of store {self.name!r} on server {index} differs from that on server 0:"
                    " one of them was restarted, or resumed without the other; restore a checkpoint"
                )
        return moments

    def refresh_newest_time(self) -> None:
        """Refreshes the newest time from the servers, after rows were replaced or other workers may have pushed."""
        moments = self.cluster.ask("Moment", messages.StoreRequest(store=self.name))
        self.newest_time.set(max(time for moment in moments for time in moment.newest_times))

    def open_at_new_servers(self) -> None:
        """Opens the store on restarted servers, with a `life` of its own: no cut is possible until it is restored."""
        request = _configuration(self.name, self._agreement)
        for index, answer in enumerate(self.cluster.ask("Configure", request)):
            if answer.is_new:
                self._follow(index)

    def next_life(self, generation: int) -> messages.Life:
        """Returns a new `life`, of a generation above this one and above those of the servers."""
        moments = self.cluster.ask("Moment", messages.StoreRequest(store=self.name))
        highest = max([generation, *(moment.life.generation for moment in moments)])
        return messages.Life(generation=highest + 1, life=secrets.randbits(63))

    def resume_request(self, stamps: Mapping[int, BatchStamp], life: messages.Life) -> messages.ResumeRequest:
        """Returns the request that resumes one server at the stamps of a saved run."""
        plain = [stamp_message(stamp) for stamp in stamps.values()]
        return messages.ResumeRequest(store=self.name, stamps=plain, life=life)

    def take_life(self, life: messages.Life) -> None:
        """Sets this `life` on all servers, which ends marks and readers; rows and workers stay."""
        self.cluster.ask("Configure", _configuration(self.name, self._agreement, adopted=life))

    # Implementation

    def _row_client(self, with_counts: bool) -> _core.RowClient:
        return _core.RowClient(
            self.cluster.frame_addresses,
            self.frames_words,
            [(owned.start, owned.stop) for owned in self.owned],
            self.native.core,
            token=self.cluster.token or "",
            half=self._wire == "fp16",
            with_counts=with_counts,
            lost_after_seconds=self.cluster.lost_after_seconds,
        )

    def _follow(self, index: int) -> None:
        """Reconnects to a server that has moved."""
        self.rows.move(index, self.cluster.frame_address(index), self.frames_words[index])

    def _open(self, method: str, request: Any, *, undo: str, timeout_seconds: float | None = None) -> list[Any]:
        """Sends all servers a call that opens a resource; if one rejects it, closes it on the others.

        `undo` is the call that releases a resource by its number.
        """
        self.cluster.require_stay()
        answers, errors = outcomes_of(self.cluster.begin(method, request, timeout_seconds=timeout_seconds))
        if errors:
            kind = messages.CutRequest if undo == "ReleaseCut" else messages.TicketRequest
            self.cluster.tell(
                undo, [None if answer is None else kind(store=self.name, number=answer.number) for answer in answers]
            )
            raise errors[0]
        return answers

    def _requests_of_ids(self, kind: Any, table: str, ids: Tensor, buckets: Tensor | None) -> Iterator[list[Any]]:
        """Yields messages of one kind with the ids of each server, in chunks."""
        self.native.number_of(table)
        flat = id_array(ids, _SUBJECT).reshape(-1)
        flat_buckets = bucket_array(buckets, len(flat), _SUBJECT)
        for begin in range(0, max(1, len(flat)), _IDS_PER_MESSAGE):
            part = slice(begin, begin + _IDS_PER_MESSAGE)
            some, told = flat[part], None if flat_buckets is None else flat_buckets[part]
            if told is not None and len(told) and told.max() >= NUM_BUCKETS:
                raise InvalidArgumentError(f"a bucket must be in [0, {NUM_BUCKETS}), got {told.max()}")
            owners = (_core.bucket_of(some) if told is None else told).astype(np.int64) * len(self.owned) // NUM_BUCKETS
            grouped, sizes = _core.group_by_index(owners, len(self.owned))
            yield [
                kind(
                    store=self.name,
                    table=table,
                    ids=np.ascontiguousarray(some[own], "<i8").tobytes(),
                    buckets=b"" if told is None else np.ascontiguousarray(told[own], "<u2").tobytes(),
                )
                for own in np.split(grouped, np.cumsum(sizes)[:-1])
            ]

    def _load_order(self, own: range, buckets: range, *, replace: bool) -> messages.LoadOrder:
        return messages.LoadOrder(
            store=self.name,
            client=self.cluster.client,
            buckets=buckets_message(own),
            emptied=buckets_message(emptied_by(own, buckets)) if replace else None,
        )


def _ordered(kind: Any, order: Any, blocks: Sequence[RowBlock]) -> Iterator[Any]:
    """Returns the messages of a stream: the order, then its blocks."""
    return chain([kind(order=order)], (kind(blocks=message) for message in messages_of(blocks)))


def _newest_times(moments: Sequence[Any]) -> list[int]:
    """Returns the newest time of each table, over all servers."""
    return [max(times) for times in zip(*(moment.newest_times for moment in moments), strict=True)]
