"""The one interface between a model and its tables, whatever engine keeps the rows.

`LocalStore` keeps them in this process; parameter servers, sharded ranks and a GPU cache implement the same protocol,
so a model never knows which one it talks to. `tests/contracts` runs on every implementation and compares it with the
plain dictionary of `monolith.testing.ReferenceStore`.

The life of a batch::

    joined = store.join(worker)                               # begins an incarnation of this worker
    plan = joined.plan(ids, table_splits, stamp=stamp)        # pure function of the ids: may run in the data thread
    rows = joined.read(plan, after=last, step=step, train=True).result()
    ...                                                       # forward and backward over rows.values
    joined.apply([(plan, gradient)], Update(previous=last, ...)).result()     # or joined.discard(plan), never both

The clock is the stamp: (worker, number of that worker's batch). There is no number of updates of a whole store: many
workers push to many owners without an order among them. An owner of rows keeps the last stamp of every worker beside
them, changed under one gate; that pair is all that is atomic. Owners may differ by the pushes under way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from monolith.tables.batch import (
    NOTHING_APPLIED,
    Applied,
    BatchStamp,
    Finished,
    Pending,
    Plan,
    Rows,
    Update,
)
from monolith.tables.history import ChangeReader, Cut, Mark, OwnerClock, WriteRules, WrittenRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from monolith.tables.row_block import RowBlock
    from monolith.tables.schema import Schema
    from monolith.tables.snapshot.manifest import Manifest
    from monolith.tables.snapshot.restore import RestoreReport

__all__ = [
    "NOTHING_APPLIED",
    "Applied",
    "BatchStamp",
    "ChangeReader",
    "Cut",
    "Finished",
    "Joined",
    "LoadReport",
    "Mark",
    "OwnerClock",
    "Pending",
    "Plan",
    "PreparedRestore",
    "Rows",
    "Store",
    "StoreStats",
    "Traits",
    "Update",
    "WriteRules",
    "WrittenRows",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What kind of engine a store is; the contract suite selects its cases by these."""

    collective: bool = False
    """Every rank must make the same calls in the same order."""
    remote: bool = False
    """Rows live in other processes: calls may fail and be repeated."""
    device: str = "cpu"
    """Where `Rows.values` and gradients live."""
    exact: bool = True
    """Results are bit for bit those of the reference; otherwise close to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What `Store.load` did."""

    rows: int = 0
    """Rows written."""
    tombstones: int = 0
    """Ids removed, or remembered as removed."""
    filters: int = 0
    """Buckets whose admission counts were taken over."""
    ignored: int = 0
    """Rows, tombstones and filters outside the asked buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Numbers of a store, for logs and dashboards."""

    rows: int
    """Rows of all tables."""
    memory_bytes: int
    """Memory of rows, indexes and filters."""
    applied: Mapping[int, int]
    """Worker -> number of its last batch that every owner has."""
    open_plans: int
    """Training plans that were read and neither applied nor discarded yet."""
    tables: Mapping[str, Mapping[str, float]]
    """Name -> the numbers of one table, as `HashTable.stats` returns them."""

    @property
    def evicted(self) -> int:
        """Rows that were removed since the owners of rows were started, because they had expired or by a cap."""
        return int(sum(table["evicted"] for table in self.tables.values()))

    times_ahead: int
    """Times of updates, since the store was made, that lay far ahead of all before and were set back."""


class PreparedRestore(AbstractContextManager["PreparedRestore"], Protocol):
    """A restore whose files were read and checked, and that can still be given up by leaving the context."""

    def load(self) -> RestoreReport:
        """Replaces what the store holds by what the files hold, as `Store.load` does. `Store.resume` comes after it."""
        ...


class Joined(Protocol):
    """One incarnation of a worker at a store: the handle through which it trains. Any thread may call it.

    It ends when the same worker joins again, or the store is resumed from a saved state; from then on every call but
    `plan`, `discard` and a `read` with ``train=False`` is refused. Calls of one worker take effect in their order.
    """

    @property
    def worker(self) -> int:
        """Number of the worker."""
        ...

    @property
    def applied(self) -> BatchStamp | None:
        """When it joined: its last batch that every owner had; reading resumes at its position."""
        ...

    @property
    def applied_by_server(self) -> Sequence[BatchStamp | None]:
        """When it joined: its last batch at each owner, such as a server; None where there was none."""
        ...

    @property
    def next_seq(self) -> int:
        """When it joined: no owner had a batch of this number or above."""
        ...

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> Plan:
        """As `Store.plan`; the stamp is of this worker."""
        ...

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Rows that contain every update of this worker up to its batch `after` (-1: none needed).

        With `train=True` the plan is open: it must end in exactly one `apply` or `discard`. It may be read again, also
        while the first rows are on their way.

        Args:
            plan: Of this worker.
            after: Number of a batch that was applied, or is on its way.
            step: Global step of the pass that the rows are for; quantisers of training depend on it.
            train: Whether an update will follow.
        """
        ...

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """One optimizer step per id with the sum of its gradients (flat float32 in plan order) over all plans.

        A batch that was applied before is not applied again; a call that failed half way is completed by repeating it.
        Times that lie far ahead are set back before any owner of rows sees them: one update moves the newest time of
        a store by a day at most (`core/table/time_bound.h` has the rule, `testing.reference_times` has it in Python).

        Raises:
            FailedPreconditionError: `rule.previous` is not the last batch applied; says which one is.
        """
        ...

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update. Empty plans and the end of data need it to keep ranks in step.

        It waits for nobody; the rows of the plan may still be on their way, or its update may have failed.
        """
        ...

    def flush(self, *, timeout_seconds: float) -> int:
        """Waits until every update handed over is in the rows; returns this worker's last batch in them.

        Raises:
            OpError: the first error of an update that was on its way.
            DeadlineExceededError: they did not arrive in time.
        """
        ...

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """As `Store.cut`, with every update that this worker has handed over."""
        ...

    def evict(self, *, now: int) -> int:
        """Removes expired rows, after the updates of this worker; `now` -1 means each table's newest time."""
        ...


@runtime_checkable
class Store(Protocol):
    """Tables behind plans: see the module for the life of a batch.

    Every call may come from any thread. A failed call leaves the tables as they were, or is completed by repeating it.
    """

    @property
    def schema(self) -> Schema:
        """Tables, segments and the slot rule; its digest is compared at connect, restore and replay."""
        ...

    @property
    def traits(self) -> Traits:
        """What kind of engine this is."""
        ...

    # Batches

    def join(self, worker: int) -> Joined:
        """Begins an incarnation of a worker; an older one of the same worker is refused from then on."""
        ...

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> Plan:
        """Groups the ids (int64 [n], tables end to end, `table_splits` int64 [T + 1]) of one batch.

        Here and elsewhere a row is known by its key and its bucket. Where slots of any int64 share a table, a key is
        not always an id and does not tell its bucket (`docs/formats/buckets.md`): `buckets`, int16 [n], then says it.

        Raises:
            InvalidArgumentError: a key whose bucket has to be given was not given one.
        """
        ...

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Rows as they are now, for whoever only looks; absent ids read zeros, and nothing is left behind."""
        ...

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """Freezes the state of every owner. One cut can be open at a time."""
        ...

    def open_reader(self, name: str, *, at: Mark | None = None) -> ChangeReader:
        """A follower of changes from `at` on; None: where the reader of this name was, or from now on.

        The store forgets behind its slowest reader, and everything when it has none; while a cut is open nothing that
        came after it, so that a reader can be opened at its mark.

        Raises:
            FailedPreconditionError: a mark of another life, of the future, or whose history was forgotten.
        """
        ...

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Rows of these ids count as changed, absent ids as removed; weights and times stay."""
        ...

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes the rows of these ids and what admission has counted for them; returns how many rows there were.

        All of these ids count as removed for readers, also those without a row. An update that arrives later, of a
        batch that was read before, finds no row and treats the id as a new one: old weights and state do not return.
        """
        ...

    # Saving and restoring

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Writes rows, tombstones and filters of `buckets`; nothing changes unless all blocks are good.

        `PackedBlocks`, many in one buffer, are blocks like any others, and cost least.

        `replace=True` empties these buckets first, which an open cut forbids. No history reaches across that: readers
        advance to a mark after it and read the whole anew. Newest times begin anew with all buckets.
        """
        ...

    def prepare_restore(
        self, folder: str, manifest: Manifest, *, buckets: range, ignore_unknown_tables: bool = False
    ) -> PreparedRestore:
        """Reads and checks the files of `buckets` that a manifest lists; each owner reads those of its own.

        Nothing that a user can see changes before `PreparedRestore.load`.

        Args:
            folder: Where the files are, local or any fsspec path.
            manifest: What they hold.
            buckets: Consecutive buckets to replace; others stay as they are.
            ignore_unknown_tables: Leave out tables that only the files have, instead of refusing.

        Raises:
            NotFoundError: a file is missing.
            DataLossError: a file is not what was written.
            FailedPreconditionError: the store cannot take a table.
        """
        ...

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Takes over, after `load` or a restore, how far the saved run had come.

        The store's generation becomes higher than `generation` and than its own; marks of another life, readers and
        incarnations of workers end. Clocks may come from any number of owners.

        Raises:
            FailedPreconditionError: an owner would get buckets whose clocks differ; names the worker and the batches.
        """
        ...

    # The whole

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites (or adds to) the weights of the block's ids; optimizer state stays. Times as in `Joined.apply`."""
        ...

    def stats(self) -> StoreStats:
        """Numbers for logs."""
        ...

    def rows_by_slot(self, table: str) -> Mapping[int, int]:
        """Number of a slot -> its rows, of a table whose keys carry these numbers; -1: of unknown slots.

        One pass over the rows; slots without a row are left out.
        """
        ...

    def close(self) -> None:
        """Ends its threads, connections and readers. Calling it again does nothing."""
        ...
