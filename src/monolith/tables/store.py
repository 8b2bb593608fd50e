"""The one interface between a model and its tables, whatever engine keeps the rows.

`LocalStore` keeps them in this process; parameter servers and sharded ranks implement the same protocol, so a model
does not depend on the engine. `tests/contracts` runs on every implementation and compares it with the plain dictionary
of `monolith.testing.ReferenceStore`.

The lifecycle of a batch::

    joined = store.join(worker)                               # begins an incarnation of this worker
    plan = joined.plan(ids, table_splits, stamp=stamp)        # pure function of the ids: may run in the data thread
    rows = joined.read(plan, after=last, step=step, train=True).result()
    ...                                                       # forward and backward over rows.values
    joined.apply([(plan, gradient)], Update(previous=last, ...)).result()     # or joined.discard(plan), never both

The clock is the stamp: (worker, number of that worker's batch). A store has no global number of updates: many workers
push to many owners without an order among them. An owner stores the last stamp of every worker together with its rows
and changes both under one gate; only that pair is atomic. Owners may differ by the pushes in flight.

Some engines can do more, which callers find out by `isinstance(store, ...)` with an optional protocol: `RemoteRows`,
`KernelRows` and `ServingRows` below, and `PublishedRows` of `monolith.deltalog.publish`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from monolith import _core
    from monolith.tables.batch import Applied, BatchStamp, Pending, Plan, Rows, Update
    from monolith.tables.cuda_plan import Occurrences, PlanArrays
    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import ChangePosition, ChangeReader, Cut, OwnerClock
    from monolith.tables.keyed_rows import KeyedRows, KeyedValues
    from monolith.tables.schema import Schema
    from monolith.tables.snapshot.manifest import SnapshotManifest
    from monolith.tables.snapshot.restore import RestoreReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of an engine; the contract suite selects its cases by them."""

    collective: bool = False
    """Every rank must make the same calls in the same order."""
    remote: bool = False
    """Rows live in other processes: calls may fail and be repeated."""
    device: str = "cpu"
    """Device of `Rows.values` and gradients."""
    exact: bool = True
    """Results are bit for bit those of the reference; otherwise close to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Result of `Store.load`."""

    rows: int = 0
    """Rows written."""
    tombstones: int = 0
    """Ids removed, or recorded as removed."""
    filters: int = 0
    """Buckets whose admission counts were loaded."""
    ignored: int = 0
    """Rows, tombstones and filters outside the requested buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Statistics of a store, for logs and dashboards."""

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
        """Rows removed by expiry or by a cap since the owners of the rows were started."""
        return int(sum(table["evicted"] for table in self.tables.values()))

    times_ahead: int
    """Times of updates, since the store was created, that were far ahead of all earlier ones and were set back."""


class PreparedRestore(AbstractContextManager["PreparedRestore"], Protocol):
    """A restore whose files were read and checked. Leaving the context without `load` abandons it."""

    def load(self) -> RestoreReport:
        """Replaces the contents of the store by those of the files, like `Store.load`. Call `Store.resume` after it."""


class WorkerSession(Protocol):
    """One incarnation of a worker at a store: the handle through which the worker trains. Thread-safe.

    It ends when the same worker joins again, or when the store is resumed from a saved state; after that every call
    except `plan`, `discard` and a `read` with ``train=False`` is rejected. Calls of one worker take effect in order.
    """

    @property
    def worker(self) -> int:
        """Number of the worker."""

    @property
    def applied(self) -> BatchStamp | None:
        """The worker's last batch that every owner had when it joined; reading resumes at its position."""

    @property
    def applied_by_server(self) -> Sequence[BatchStamp | None]:
        """The worker's last batch at each owner (such as a server) when it joined; None for an owner without one."""

    @property
    def next_seq(self) -> int:
        """When the worker joined, no owner had a batch of this number or above."""

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> Plan:
        """Like `Store.plan`, with a stamp of this worker."""

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Returns rows that contain every update of this worker up to its batch `after` (-1: none required).

        With `train=True` the plan is open: it must end in exactly one `apply` or `discard`. The plan may be read
        again, also while the first read is in flight.

        Args:
            plan: A plan of this worker.
            after: Number of a batch that was applied, or whose update is in flight.
            step: Global step of the pass that the rows are for; quantisers of training depend on it.
            train: Whether an update will follow.
        """

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Makes one optimizer step per id with the sum of its gradients (flat float32 in plan order) over all plans.

        A batch that was applied before is not applied again; repeat a call that failed half way to complete it.
        Times that lie far ahead are set back before any owner of rows sees them: one update moves the newest time of
        a store by a day at most (`core/table/time_bound.h` has the rule, `testing.reference_format` has it in Python).

        Raises:
            FailedPreconditionError: `rule.previous` is not the last batch applied; the message names that batch.
        """

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update. Empty plans and the end of data need it to keep ranks in step.

        Does not block; the read of the plan may still be in flight, or its update may have failed.
        """

    def flush(self, *, timeout_seconds: float) -> int:
        """Waits until every submitted update is in the rows; returns this worker's last batch in them.

        Raises:
            OpError: the first error of an update that was in flight.
            DeadlineExceededError: the updates did not complete in time.
        """

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """Like `Store.cut`; includes every update that this worker has submitted."""

    def evict(self, *, now: int) -> int:
        """Removes expired rows, after the updates of this worker; `now` -1 means each table's newest time."""


@runtime_checkable
class Store(Protocol):
    """Tables that are read and updated through plans; the module docstring shows the lifecycle of a batch.

    Thread-safe. A failed call leaves the tables unchanged, or is completed by repeating it.
    """

    @property
    def schema(self) -> Schema:
        """Tables, segments and the slot rule; its digest is compared at connect, restore and replay."""

    @property
    def traits(self) -> Traits:
        """Properties of this engine."""

    @property
    def owned(self) -> Sequence[range]:
        """The buckets of each owner of rows, in the order of `WorkerSession.applied_by_server`; together all buckets.

        An engine with one owner has `(ALL_BUCKETS,)`.
        """

    # Batches

    def join(self, worker: int) -> WorkerSession:
        """Begins an incarnation of a worker; calls of its older incarnation are rejected from then on."""

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> Plan:
        """Groups the ids (int64 [n], tables end to end, `table_splits` int64 [T + 1]) of one batch.

        A row is identified by its key and its bucket. Where slots of any int64 share a table, a key is not always an id
        and does not determine its bucket (`docs/formats/buckets.md`): pass the buckets as `buckets`, int16 [n].

        Raises:
            InvalidArgumentError: the bucket of a key is missing and cannot be derived from the key.
        """

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Returns the current rows, for read-only callers; absent ids read zeros, and no state is kept for the plan."""

    # History

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """Freezes the state of every owner. One cut can be open at a time."""

    def open_reader(self, name: str, *, at: ChangePosition | None = None) -> ChangeReader:
        """Opens a reader of the changes after `at`; None: from the last position of this reader, or from now.

        The store truncates its history up to the slowest reader and keeps none without readers. While a cut is open
        the history after it is kept, so that a reader can be opened at its mark.

        Raises:
            FailedPreconditionError: the mark is of another run, lies in the future, or its history was truncated.
        """

    def touch(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> None:
        """Marks the rows of these ids as changed and absent ids as removed; weights and times stay."""

    def erase(self, table: str, ids: Tensor, *, buckets: Tensor | None = None) -> int:
        """Removes the rows of these ids and their admission counts; returns the number of rows removed.

        Readers see all of these ids as removed, also those without a row. A later update of a batch that was read
        before finds no row and treats the id as new: old weights and state do not return.
        """

    # Saving and restoring

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Writes rows, tombstones and filters of `buckets`; nothing changes unless all blocks are good.

        `PackedBlocks`, many in one buffer, are blocks like any others, and cost least.

        `replace=True` empties these buckets first, which an open cut forbids. No history reaches across that: readers
        advance to a mark after it and read everything from the start. Replacing all buckets also resets newest times.
        """

    def prepare_restore(
        self, folder: str, manifest: SnapshotManifest, *, buckets: range, ignore_unknown_tables: bool = False
    ) -> PreparedRestore:
        """Reads and checks the files of `buckets` that a manifest lists; each owner reads the files of its own buckets.

        Nothing that a user can see changes before `PreparedRestore.load`.

        Args:
            folder: Folder of the files, local or any fsspec path.
            manifest: Manifest of the files.
            buckets: Consecutive buckets to replace; others stay as they are.
            ignore_unknown_tables: Skip tables that only the files have, instead of raising.

        Raises:
            NotFoundError: a file is missing.
            DataLossError: a file is damaged.
            FailedPreconditionError: the store cannot load a table.
        """

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Sets, after `load` or a restore, the progress of the saved run.

        The store's generation becomes higher than `generation` and than its own; marks, readers and worker incarnations
        of the previous run end. Clocks may come from any number of owners.

        Raises:
            FailedPreconditionError: an owner would get buckets whose clocks differ; names the worker and the batches.
        """

    # All rows

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites (or adds to) the weights of the block's ids; optimizer state stays. Times: see `WorkerSession`."""

    def stats(self) -> StoreStats:
        """Returns statistics for logs."""

    def rows_by_slot(self, table: str) -> Mapping[int, int]:
        """Returns slot number -> rows, for a table whose keys carry slot numbers; -1: rows of unknown slots.

        Makes one pass over the rows; slots without a row are omitted.
        """

    def close(self) -> None:
        """Ends its threads, connections and readers. Idempotent."""


# Optional


class RowOwners(Protocol):
    """The owners of a store's rows, which can lose their state one by one."""

    @property
    def owned(self) -> Sequence[range]:
        """The buckets of each owner."""

    def uninitialized(self) -> Sequence[int]:
        """Returns the owners without state: `set_initialized` was not called since they started."""

    def set_initialized(self) -> None:
        """Marks all owners as having state, for as long as they run."""

    def resume(self, lost: Sequence[int], *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Like `Store.resume`, for these owners alone; the others are unchanged."""


@runtime_checkable
class RemoteRows(Protocol):
    """Optional: rows of owners that outlive this process, also serve other workers, and can be lost one by one."""

    @property
    def name(self) -> str:
        """Name of the store at its owners."""

    @property
    def owners(self) -> RowOwners:
        """The owners, for a restore of those that were lost; without it they are restored together."""

    @property
    def steps_of_others(self) -> int:
        """Batches of all other workers, as last reported by the first owner; -1: not reported yet."""

    def refresh_newest_time(self) -> None:
        """Refreshes the newest time from the owners, after another process has replaced their rows."""


@runtime_checkable
class KernelRows(Protocol):
    """Optional: rows on a device that runs the kernels of the core, which pool them and sum their gradients there."""

    @property
    def device(self) -> torch.device:
        """The device of rows and gradients."""

    @property
    def launcher(self) -> _core.DeviceLauncher:
        """What runs the kernels, in any stream of the device."""

    def plan_arrays(self, plan: Plan) -> PlanArrays:
        """Returns the arrays of a plan on the device, ready for the caller's current stream."""

    def occurrences(self, plan: Plan) -> Occurrences:
        """Returns where each unique id of a plan occurs, on the device, ready for the caller's current stream."""


@runtime_checkable
class ServingRows(Store, Protocol):
    """Optional: a store whose rows requests read by their keys, without a worker; `monolith.serving` needs it."""

    @property
    def core(self) -> _core.Group | None:
        """The rows as the core's kernels take them, which look up and pool all rows of a request in one call.

        None: they are not in the core. Then requests call `lookup`, and the rows are pooled on their device.
        """

    def lookup(self, keyed: KeyedRows, *, step: int = 0) -> KeyedValues:
        """Returns the current rows of keys that `buckets_of_keys` has checked. Safe with writers: no row is torn.

        `step` is for quantisers of training, as in `WorkerSession.read`.
        """

    def overwrite(self, keyed: KeyedRows, values: NDArray[np.float32]) -> None:
        """Overwrites the weights of keys, timed now, by flat values in the order of `lookup`; the last of equals wins.

        Rows of absent keys are created. Weights that are not finite are stored as they are.
        """
