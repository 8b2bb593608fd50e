"""The one interface between a model and its tables, whatever engine keeps the rows.

`LocalStore` keeps them in this process; parameter servers, sharded ranks and a GPU cache implement the same protocol,
so a model never knows which one it talks to. `tests/contracts` runs on every implementation and compares it with the
plain dictionary of `monolith.testing.ReferenceStore`.

The life of a batch::

    plan = store.plan(ids, table_splits, stamp=stamp)         # pure function of the ids: may run in the data thread
    rows = store.read(plan, after=seq - 1, train=True).result()
    ...                                                       # forward and backward over rows.values
    store.apply([(plan, gradient)], Update(seq=seq, ...)).result()      # or store.discard(plan), never both

Dims: n ids of the batch, U unique (table, id) pairs of it, T tables, D dim of a table, S segments of all tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

from monolith.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from monolith.tables.row_block import RowBlock
    from monolith.tables.schema import Schema

T_co = TypeVar("T_co", covariant=True)

NOTHING_APPLIED = -1
"""The `seq` of a store before its first update; updates count from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStamp:
    """Who read a batch, and how far its input had been read after it.

    Stores keep the last applied stamp of every worker: it makes a repeated push harmless and is the input position that
    a checkpoint commits.
    """

    worker: int
    """Number of the reader, >= 0."""
    seq: int
    """Number of the batch of this worker, >= 0, growing; gaps are allowed (batches that were discarded)."""
    position: bytes = b""
    """Where reading resumes after this batch; opaque to the store."""
    event_time: int = 0
    """Newest event of the batch, Unix seconds."""

    def __post_init__(self) -> None:
        if self.worker < 0 or self.seq < 0:
            raise InvalidArgumentError(
                f"batch stamp: worker and seq must be >= 0, got worker {self.worker}, seq {self.seq}"
            )


class Plan(Protocol):
    """The distinct ids of a batch, grouped for the engine. A pure function of the ids: making one touches no table."""

    @property
    def stamp(self) -> BatchStamp:
        """The batch this plan belongs to."""
        ...

    @property
    def unique_ids(self) -> Tensor:
        """int64 [U], bucket-major, then table; first-seen order inside a (bucket, table)."""
        ...

    @property
    def splits(self) -> Tensor:
        """int64 [buckets * T + 1]: where each (bucket, table) starts in `unique_ids`."""
        ...

    @property
    def inverse(self) -> Tensor:
        """int32 [n]: input position -> position in `unique_ids`."""
        ...

    @property
    def counts(self) -> Tensor:
        """int32 [U]: occurrences in the batch, which admission counts."""
        ...


class Rows(Protocol):
    """What a read returns."""

    @property
    def values(self) -> Tensor:
        """float32, flat: the D values of each unique id, in plan order."""
        ...

    @property
    def seen_seq(self) -> int:
        """Every update up to this one is contained in `values`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How gradients are applied: one optimizer step for every id of the plans handed over together."""

    seq: int
    """Number of this update, >= 0."""
    step: int
    """Global step, >= 0; schedules and batch softmax read it."""
    learning_rates: Tensor
    """float32 [S]: one per segment, tables in sorted-name order."""
    times: int | Tensor
    """Unix seconds: one number, or int64 [n] for the ids of all plans end to end."""
    scale: float = 1.0
    """Multiplies every gradient: the clip factor."""
    known_finite: bool = False
    """True: the caller saw that no gradient is NaN or infinite, and the store need not look for one."""

    def __post_init__(self) -> None:
        if self.seq < 0 or self.step < 0:
            raise InvalidArgumentError(f"update: seq and step must be >= 0, got seq {self.seq}, step {self.step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an update did to how many (table, id) pairs."""

    updated: int = 0
    """Rows that learned, new ones included."""
    inserted: int = 0
    """Rows that came into being."""
    filtered: int = 0
    """Ids kept out by admission."""
    skipped: int = 0
    """Ids passed over because their gradient was not finite (policy `skip`)."""
    duplicate: bool = False
    """True iff this batch had been applied before; nothing was done."""


class Pending(Protocol[T_co]):
    """A result that may still be on its way."""

    def done(self) -> bool:
        """True iff `result` returns without waiting."""
        ...

    def result(self, timeout_seconds: float | None = None) -> T_co:
        """The result, or the error of the call.

        Raises:
            DeadlineExceededError: it did not come within `timeout_seconds`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finished(Pending[T_co]):
    """A `Pending` whose result is there already: what an engine without waiting returns."""

    value: T_co

    def done(self) -> bool:
        """Always true."""
        return True

    def result(self, timeout_seconds: float | None = None) -> T_co:  # noqa: ARG002 - the signature of Pending
        """The value."""
        return self.value


class Mark(NamedTuple):
    """A moment in the history of a store, from which `changes` can be asked."""

    generation: int
    """Grows with every rollback; marks of another generation are refused."""
    epoch: int
    """Closed by `Store.mark`; 0 is before everything."""


class Cut(Protocol):
    """The exact state of a store after one update, valid until `release` while training continues."""

    @property
    def seq(self) -> int:
        """The last update it contains."""
        ...

    @property
    def mark(self) -> Mark:
        """Its place in the history: `changes(since=cut.mark)` is what came after it."""
        ...

    @property
    def applied(self) -> Mapping[int, BatchStamp]:
        """Worker -> its last applied batch: input positions and exactly-once in one."""
        ...

    def blocks(self, buckets: range, *, state: bool) -> Iterator[RowBlock]:
        """Filters, tombstones and rows of `buckets`; each bucket once per cut. `state=False`: serving rows."""
        ...

    def release(self) -> None:
        """Lets the store forget the old images it kept for this cut. Calling it again does nothing."""
        ...


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
    last_seq: int
    """The last update applied; -1 before the first."""
    open_plans: int
    """Training plans that were read and neither applied nor discarded yet."""
    tables: Mapping[str, Mapping[str, float]]
    """Name -> the numbers of one table, as `HashTable.stats` returns them."""


@runtime_checkable
class Store(Protocol):
    """Tables behind plans: see the module for the life of a batch.

    Every call may come from any thread. Updates take effect in the order of the `apply` calls; a failed call leaves the
    tables as they were.
    """

    @property
    def schema(self) -> Schema:
        """Tables, segments and the slot rule; its digest is compared at connect, restore and replay."""
        ...

    @property
    def traits(self) -> Traits:
        """What kind of engine this is."""
        ...

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp) -> Plan:
        """Groups the ids (int64 [n], tables end to end, `table_splits` int64 [T + 1]) of one batch."""
        ...

    def read(self, plan: Plan, *, after: int, train: bool) -> Pending[Rows]:
        """Rows that contain every update up to `after` (-1: none needed); absent ids read zeros.

        With `train=True` the plan is open: it must end in exactly one `apply` or `discard`.
        """
        ...

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """One optimizer step per id with the sum of its gradients (flat float32 in plan order) over all plans.

        A batch whose stamp was applied before is not applied again.
        """
        ...

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update. Empty plans and the end of data need it to keep ranks in step."""
        ...

    def flush(self, *, timeout_seconds: float) -> int:
        """Waits until every update handed over is in the rows; returns the last `seq`, or raises the first error."""
        ...

    def cut(self, *, seq: int) -> Cut:
        """Freezes the state after update `seq`, which must be the last one applied."""
        ...

    def mark(self) -> Mark:
        """Closes the current epoch: what is written from now on is in `changes(since=mark)`."""
        ...

    def changes(self, *, since: Mark, state: bool) -> Iterator[RowBlock]:
        """Current rows and tombstones of everything touched after `since`. Many readers, each with its own mark."""
        ...

    def forget(self, *, before: Mark) -> None:
        """Promises that no reader will ask for changes before this mark, so that tombstones can be dropped."""
        ...

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Writes rows, tombstones and filters of `buckets`; `replace=True` empties these buckets first."""
        ...

    def resume(self, *, seq: int, applied: Mapping[int, BatchStamp], generation: int) -> None:
        """Takes over, after `load`, how far the saved run had come."""
        ...

    def assign(self, block: RowBlock, *, add: bool) -> None:
        """Overwrites (or adds to) the weights of the block's ids; optimizer state stays."""
        ...

    def evict(self, *, now: int, seq: int) -> int:
        """Removes expired rows at the boundary after update `seq`; `now` -1 means each table's newest time."""
        ...

    def stats(self) -> StoreStats:
        """Numbers for logs."""
        ...


def require_boundary(subject: str, *, asked: int, last: int) -> None:
    """Refuses to act "after update `asked`" unless that is the last update applied.

    Raises:
        FailedPreconditionError: updates are missing, or later ones are already in the rows.
    """
    if asked > last:
        raise FailedPreconditionError(
            f"{subject}: asked for the state after update {asked}, but the last one applied is {last};"
            " apply or flush first"
        )
    if asked < last:
        raise FailedPreconditionError(
            f"{subject}: asked for the state after update {asked}, but update {last} is already in the rows;"
            f" ask at the boundary with seq={last}"
        )
