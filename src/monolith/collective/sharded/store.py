"""Rows that the ranks of a synchronous run share, each rank some buckets, as a `monolith.tables.store.Store`.

The ranks agree on their tables, on the buckets of each rank, and on the run id of the store. `OwnRows` restores one
rank by itself, from a folder that may hold only the rows of that rank.
"""

from __future__ import annotations

import json
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from monolith import environment
from monolith.collective import calls
from monolith.collective.serial_executor import RaisedByAllError
from monolith.collective.sharded.calls import BlockStreams, RankCalls, gather_texts, pack, unpack
from monolith.collective.sharded.changes import ReaderCalls, ShardedPublisher, ShardedReader
from monolith.collective.sharded.exchange import AlltoallMetrics, RankReads, RowExchange, alltoall_metrics
from monolith.collective.sharded.joined import HandedOver, RankUpdates, ShardedWorkerSession
from monolith.collective.sharded.owner import IdMessage, RowOwner, ShardedPlan
from monolith.collective.sharded.snapshots import CutCalls, RestoreCalls, ShardedCut, ShardedRestore
from monolith.collective.sharded.whole import WholeCalls
from monolith.deltalog.publish import LocalPublisher
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import (
    ALL_BUCKETS,
    LoadReport,
    StoreStats,
    Traits,
    bucket_array,
    bucket_bounds,
    differences,
    emptied_by,
    id_array,
    owned_ranges,
    require_owners,
    share_of,
    shared_buckets,
    sorted_by_name,
    time_array,
)
from monolith.tables.local import (
    LocalCut,
    LocalHistory,
    LocalRestore,
    LocalStore,
    NativeStore,
    OpenPlans,
    agreed_stamps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from monolith import _core
    from monolith.collective.lock_step import Agreed
    from monolith.collective.serial_executor import LineCall, SerialExecutor
    from monolith.collective.wire import Wire
    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish import StorePublishingConfig
    from monolith.tables import (
        Applied,
        BatchStamp,
        ChangePosition,
        Cut,
        OwnerClock,
        Pending,
        Plan,
        Rows,
        Schema,
        Store,
        TableConfig,
    )
    from monolith.tables.formats import RowBlock
    from monolith.tables.local import LocalRows
    from monolith.tables.snapshot import SnapshotManifest

_SUBJECT = "sharded store"
_VARIABLE = "MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD"
_FEW_RANKS = 4
"""Up to this number of ranks, a rank without rows would cost too much capacity."""


def owned_by_ranks(num_ranks: int, spare_first_rank: bool | None) -> tuple[range, ...]:
    """Returns the buckets of each rank; rank 0 may have none, so that it has time for its own tasks.

    >>> owned_by_ranks(3, spare_first_rank=True)
    (range(0, 0), range(0, 512), range(512, 1024))
    """
    if spare_first_rank is None:
        spare_first_rank = num_ranks > _FEW_RANKS and _variable_says_so()
    if spare_first_rank and num_ranks == 1:
        raise InvalidArgumentError(f"{_SUBJECT}: spare_first_rank leaves a run of one rank without an owner of rows")
    num_owners = num_ranks - spare_first_rank
    require_owners(num_owners, subject=_SUBJECT, name="the number of ranks with rows")
    return ((range(0),) if spare_first_rank else ()) + owned_ranges(num_owners)


def _variable_says_so() -> bool:
    value = environment.get(_VARIABLE) or "1"
    if value not in {"0", "1"}:
        raise InvalidArgumentError(f"{_SUBJECT}: {_VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


def require_same_tables(
    wire: Wire, configs: Mapping[str, TableConfig], options: Sequence[Any], history: LocalHistory
) -> None:
    """Raises if ranks differ, else takes the run id (`life`) of rank 0. Runs in a call of all ranks.

    Raises:
        RaisedByAllError: they differ; the message shows the fields.
    """
    tables = {config.name: config.to_dict() for config in sorted_by_name(configs)}
    mine = json.loads(json.dumps({"tables": tables, "options": list(options)}))
    answers = [unpack(text)[0] for text in gather_texts(wire, pack([mine, secrets.randbits(63)]))]
    first = answers[0][0]
    for rank, (theirs, _) in enumerate(answers):
        if theirs != first:
            raise RaisedByAllError(
                FailedPreconditionError(
                    f"{_SUBJECT}: rank {rank} has other tables than rank 0: {differences(first, theirs)} (here: at rank"
                    f" 0). Give all ranks the same model and options"
                )
            )
    history.take_life(0, answers[0][1])


class ShardedStore(NativeStore[ShardedPlan]):
    """A `monolith.tables.store.Store` whose rows are divided among the ranks of a run; see the page on torchrun.

    Every rank makes the same calls in the same order, or is idle and follows those of the others (`followers`). In one
    read or update every rank has its own batch: an owner adds the gradients of an id in the order of the ranks and
    makes one step, so the rows equal those of one store that applies the plans of all ranks in one update. Every owner
    has the stamps of all workers.

    Args:
        configs: The tables by name; the same on all ranks.
        name: Name of the store; a model with several `Embeddings` needs a name for each.
        combine: Gradient of an id that several ranks have: the sum, or the sum divided by the number of ranks with a
            batch.
        spare_first_rank: Whether rank 0 has no buckets; None: if there are more than four ranks, unless
            ``MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD`` is 0.
        training: The line of training; None: that of the run.
        saving: The line of background work; None: that of the run.

    Raises:
        FailedPreconditionError: on all ranks, if one has other tables; the message shows the differences.
    """

    subject = _SUBJECT
    plan_kind = ShardedPlan
    traits = Traits(collective=True, remote=True)

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        name: str = "rows",
        combine: Literal["sum", "mean"] = "sum",
        spare_first_rank: bool | None = None,
        training: SerialExecutor | None = None,
        saving: SerialExecutor | None = None,
    ) -> None:
        if combine not in {"sum", "mean"}:
            raise InvalidArgumentError(f"{_SUBJECT}: combine must be 'sum' or 'mean', got {combine!r}")
        self.name = name
        self._calls = RankCalls(training or calls.training_line(), name)
        self._saving = RankCalls(saving or calls.saving_line(), name)
        self._wire = self._calls.wire
        self.owned = owned_by_ranks(self._wire.size, spare_first_rank)
        """The buckets of each rank."""
        num_owners = sum(1 for buckets in self.owned if buckets)
        own = self.owned[self._wire.rank]
        self.own_rows = LocalStore({table: share_of(config, num_owners) for table, config in configs.items()})
        """Local rows of this rank; reading them, for example their size, makes no call to other ranks."""
        self.native = self.own_rows.native
        """The tables of this rank; for plans and engine code."""
        self._with_counts = any(config.filters_ids for config in configs.values())
        self._bounds = [(buckets.start, buckets.stop) for buckets in self.owned]
        self.plans = OpenPlans(_SUBJECT)
        """Open training plans of this rank."""
        self._history = LocalHistory(self.native.core, own, _SUBJECT)
        self._owner = RowOwner(self.own_rows, own, self._wire.size)
        self.exchange = RowExchange(self._calls.lock_step, self.native, self._owner, _SUBJECT)
        self._reads = RankReads(self.exchange, name=name)
        self._updates = RankUpdates(
            self.exchange, name=name, takes_mean=combine == "mean", on_applied=self._close_applied
        )
        streams = BlockStreams(self._saving)
        self._cuts = CutCalls(
            self._saving,
            streams,
            owned=self.owned,
            take=lambda: LocalCut(self.native, self._history, self.native.core.cut(), own),
        )
        self._readers = ReaderCalls(self._calls, self._saving, streams, self._history)
        self._whole = WholeCalls(self._calls, self.own_rows, own, self._history, self._owner, self.exchange.clock)
        self._restores = RestoreCalls(self._calls, self.native, own, self._whole.refresh_newest_time)
        self._calls.define("cut of", self._cut)
        agreement = [combine, self._bounds]
        self._calls.define("open", lambda *_: require_same_tables(self._wire, configs, agreement, self._history))
        try:
            self._calls.run("open")
        except BaseException:
            self.own_rows.close()
            raise

    # Ranks without a batch

    def followers(self) -> dict[str, Callable[[Agreed, bytes], object]]:
        """Returns this rank's handlers of calls of other ranks while it is idle, for `LockStep.follow` of training."""
        return {
            **self._calls.followers(),
            self._reads.kind: self._reads.follow,
            self._updates.kind: self._updates.follow,
        }

    def saving_followers(self) -> dict[str, Callable[[Agreed, bytes], object]]:
        """Returns the handlers for the line of saving; see `followers`."""
        return self._saving.followers()

    # Batches

    def join(self, worker: int) -> ShardedWorkerSession:
        """Begins an incarnation of a worker, at this rank."""
        if worker < 0:
            raise InvalidArgumentError(f"{_SUBJECT}: worker must be >= 0, got {worker}")
        return ShardedWorkerSession(self, worker)

    def plan(
        self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None
    ) -> ShardedPlan:
        """Groups the ids of one batch. Makes no call to other ranks."""
        plan = super().plan(ids, table_splits, stamp=stamp, buckets=buckets)
        plan.message = IdMessage(self.parts_of(plan.core), stamp)
        return plan

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Reads the current rows."""
        own = self.own(plan)
        return self._line.submit(lambda: self._reads.look(own, step), self._reads.kind)

    def watch_alltoall(self, report: Callable[[AlltoallMetrics], None], *, slot: str | None = None) -> None:
        """Reports the metrics of every training read of this rank, for ``enable_alltoall_metrics``.

        Args:
            report: Called in the line, so it must be fast and must not wait for a call of this run.
            slot: A table whose ids are counted, too (``enable_alltoall_metrics_for_slot``).

        Raises:
            InvalidArgumentError: the table does not exist.
        """
        if slot is not None:
            self.native.number_of(slot)
        self._reads.on_training = lambda plan, sent: report(
            alltoall_metrics(self.native, self.owned, plan, sent, slot=slot)
        )

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> ShardedCut:  # noqa: ARG002 - the line has its own limit
        """Freezes the rows and stamps of all ranks, after the same batches."""
        cut: ShardedCut = self._calls.run("cut of")
        return cut

    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> ShardedReader:
        """Opens a reader of the changes of all ranks."""
        return self._readers.open(name, at)

    def open_publisher(self, name: str, log: DeltaLog, publishing_config: StorePublishingConfig) -> ShardedPublisher:
        """Returns a publisher of the changes of this rank; see `deltalog.publish.PublishedRows`.

        It makes no call to other ranks, and creates marks of its own: readers of all ranks cannot be open at the same
        time.
        """
        own = self.owned[self._wire.rank]
        publisher = None
        if own:
            open_reader = partial(self._history.open_reader, "delta-log")
            publisher = LocalPublisher(
                name, self.own_rows, log, publishing_config, buckets=own, open_reader=open_reader
            )
        return ShardedPublisher(name, log, self.owned, publisher)

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Marks rows as changed, and absent ids as removed."""
        self.native.number_of(table)
        flat = id_array(ids, _SUBJECT).reshape(-1)
        self._whole.touch(table, flat, bucket_array(buckets, len(flat), _SUBJECT))

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes rows and admission counts on all ranks; returns the number of removed rows."""
        self.native.number_of(table)
        flat = id_array(ids, _SUBJECT).reshape(-1)
        return self._whole.erase(table, flat, bucket_array(buckets, len(flat), _SUBJECT))

    # Saving and restoring

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows, tombstones and filters of some buckets; all ranks must be given the same blocks."""
        bucket_bounds(buckets)
        return self._whole.load(list(blocks), buckets, replace=replace)

    def prepare_restore(
        self,
        folder: str,
        manifest: SnapshotManifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> ShardedRestore:
        """Reads and checks the files of some buckets, each rank those of its own."""
        bucket_bounds(buckets)
        return self._restores.prepare(folder, manifest, buckets, ignore_unknown_tables=ignore_unknown_tables)

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Resumes from the progress of a saved run; earlier marks, readers and workers are rejected from now on."""
        self._whole.resume(applied, generation)

    # Calls on all rows

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites or adds to the weights of a full block's ids; optimizer state stays."""
        self._whole.assign(block, add=add)

    def evict(self, *, now: int) -> int:
        """Removes expired rows; `now` -1 means each table's newest time, over all ranks."""
        return self._whole.evict(now if now == -1 else int(time_array(now, (), _SUBJECT)[0]))

    def stats(self) -> StoreStats:
        """Returns the statistics of all tables, and the number of open plans of this rank."""
        return self._whole.stats(open_plans=self.plans.count)

    def rows_by_slot(self, table: str) -> dict[int, int]:
        """Returns the rows of all ranks by the number of their slot."""
        self.native.number_of(table)
        return self._whole.rows_by_slot(table)

    def close(self) -> None:
        """Closes the readers of this rank. The rows stay readable."""
        self._readers.is_closed = True
        self._history.close()
        self.own_rows.close()

    # For its components

    @property
    def _line(self) -> SerialExecutor:
        return self._calls.lock_step.line

    def parts_of(self, plan: _core.Plan) -> _core.PlanParts:
        """Returns the part of a plan for each rank."""
        return self.native.core.plan_parts(plan, self._bounds, self._with_counts)

    def join_here(self, worker: int) -> tuple[int, _core.BatchStamp | None]:
        """Begins an incarnation, after the queued calls of the previous one."""
        return self._line.run(lambda: self._owner.join(worker, self._wire.rank), f"join worker {worker} of {self.name}")

    def submit_read(self, plan: ShardedPlan, *, after: int, step: int, train: bool) -> LineCall[LocalRows]:
        """Queues a read of a worker in the line."""

        def read() -> LocalRows:
            try:
                return self._reads.make(plan, after=after, step=step, train=train)
            except RaisedByAllError:
                if train:
                    self.exchange.tickets.close(plan)
                    self.plans.reject(plan)
                raise

        return self._line.submit(read, self._reads.kind)

    def submit_update(self, update: HandedOver) -> LineCall[Applied]:
        """Queues an update of a worker in the line."""
        return self._line.submit(lambda: self._updates.make(update), self._updates.kind)

    def _close_applied(self, update: HandedOver) -> None:
        self.plans.close_applied(update.plans)
        for plan in update.plans:
            self.exchange.tickets.close(plan)

    def _cut(self, _: bytes, __: object) -> ShardedCut:
        self._whole.agree_on_newest_times()
        try:
            return self._cuts.cut(self._wire)
        except RaisedByAllError:
            # Ranks on which the cut succeeded have closed an epoch; this gives all ranks the same epochs again.
            last = self._wire.gather(torch.tensor([self.native.core.last_mark()]))
            self._history.mark_at(max(int(mark) for mark in last))
            raise


def sharded_stores(stores: Mapping[str, Store]) -> dict[str, ShardedStore]:
    """Returns the stores whose rows the ranks share; none in a run of one."""
    return {name: store for name, store in stores.items() if isinstance(store, ShardedStore)}


def own_cut(cut: Cut) -> Cut:
    """Returns the part of a cut for this rank, which may own no rows; in a run of one the cut itself."""
    return cut.take_own() if isinstance(cut, ShardedCut) else cut


class OwnRows:
    """The view of a `ShardedStore` for a restore in which each rank reads its own folder, without other ranks.

    All ranks restore concurrently. Afterwards they resume together (`ShardedStore.resume`), from the `stamps` of any of
    them.
    """

    def __init__(self, store: ShardedStore, buckets: range) -> None:
        self._store = store
        self.buckets = buckets
        """Buckets of this rank; not empty."""
        self.owned = (buckets,)
        """The buckets as a tuple, as in the interface of stores."""
        self.stamps: Mapping[int, BatchStamp] = {}
        """Worker -> its last batch in the rows that were loaded."""

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        return self._store.schema

    def prepare_restore(
        self,
        folder: str,
        manifest: SnapshotManifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> LocalRestore:
        """Reads and checks the rows of this rank in some buckets."""
        own = shared_buckets(self.buckets, buckets)
        return LocalRestore(
            self._store.native,
            folder,
            manifest,
            own,
            emptied=emptied_by(own, buckets),
            ignore_unknown_tables=ignore_unknown_tables,
        )

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows of this rank."""
        return self._store.own_rows.load(blocks, buckets=buckets, replace=replace)

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:  # noqa: ARG002 - as stores have it
        """Records the progress of the saved run."""
        self.stamps = agreed_stamps(applied, self.buckets)
