"""Runs the same calls on an engine and on the dictionary reference, and compares all that can be seen of them.

For whoever writes a `monolith.tables.store.Store`: build a program of operations (random ones, best), and let
`StoreContract` run it. Engines whose traits say ``exact`` are compared bit for bit, others within a tolerance.

>>> from monolith.tables import LocalStore, Segment, TableConfig
>>> contract = StoreContract(LocalStore, {"user": TableConfig([Segment(2)])})
>>> contract.run([Train(batches=(Batch(ids=((1, 1, 5),), seed=7),), time=10), Evict(now=20), CompareAll()])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from monolith.tables.row_block import BlockKind, RowBlock
from monolith.tables.store import BatchStamp, Mark, Update
from monolith.testing.reference_format import bucket_of_id, build_block
from monolith.testing.reference_store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.tables.store import Applied, Plan, Store
    from monolith.tables.table_config import TableConfig

    Contents: TypeAlias = dict[tuple[int, int], tuple[int, bytes]]
    """(table, id) -> (time, payload)."""

NUM_BUCKETS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Ids per table, in table order; gradients and per-id times are drawn from the seed."""

    ids: tuple[tuple[int, ...], ...]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Read and apply some batches as one update; then apply it again when `retry` is set."""

    batches: tuple[Batch, ...]
    time: int = 0
    times_per_id: bool = False
    scale: float = 1.0
    worker: int = 0
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Read a batch for training and drop it."""

    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Overwrite or add to the weights of distinct ids of one table."""

    table: int
    ids: tuple[int, ...]
    seed: int = 0
    time: int = 0
    add: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Remove expired rows; -1 is each table's newest time."""

    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowChanges:
    """Bring a follower up to date by changes alone, and compare it with the whole."""

    forget: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Cut, change the store behind the cut's back, and go on with a new store loaded from the cut."""

    disturb: Batch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAll:
    """Compare every row, state, time and stamp through a cut."""


Operation: TypeAlias = Train | Discard | Assign | Evict | FollowChanges | Reload | CompareAll


@dataclass(slots=True)
class _Side:
    """A store and the follower of its changes."""

    store: Store
    follower: Contents = field(default_factory=dict)
    mark: Mark = field(default_factory=lambda: Mark(0, 0))


class StoreContract:
    """One run of a program on an engine and on `ReferenceStore`."""

    def __init__(
        self, make_store: Callable[[Mapping[str, TableConfig]], Store], configs: Mapping[str, TableConfig]
    ) -> None:
        self._make_store = make_store
        self._configs = configs
        self._engine = _Side(make_store(configs))
        self._reference = _Side(ReferenceStore(configs))
        self._exact = self._engine.store.traits.exact
        self._dims = self._reference.store.schema.dims
        self._skips = np.array([configs[name].nonfinite == "skip" for name in sorted(configs)])
        self._seq = -1
        self._stamps: dict[int, int] = {}
        self._applied: dict[int, int] = {}
        self._seen: set[tuple[int, int]] = set()
        if self._engine.store.schema != self._reference.store.schema:
            raise AssertionError(f"schema {self._engine.store.schema} is not {self._reference.store.schema}")

    def run(self, program: Iterable[Operation]) -> None:
        """Runs all operations, comparing after each.

        Raises:
            AssertionError: the engine and the reference differ.
        """
        for operation in program:
            match operation:
                case Train():
                    self._train(operation)
                case Discard():
                    self._discard(operation)
                case Assign():
                    self._assign(operation)
                case Evict():
                    self._same("evicted", *(side.store.evict(now=operation.now, seq=self._seq) for side in self._sides))
                case FollowChanges():
                    self._follow(operation)
                case Reload():
                    self._reload(operation)
                case CompareAll():
                    self._compare_cuts()
            self._compare_reads()

    @property
    def _sides(self) -> tuple[_Side, _Side]:
        return self._engine, self._reference

    # Operations

    def _train(self, operation: Train) -> None:
        self._seq += 1
        stamps = [self._next_stamp(operation.worker) for _ in operation.batches]
        results = []
        for side in self._sides:
            results.append(self._train_one(side.store, operation, stamps))
            if operation.retry:
                again = self._train_one(side.store, operation, stamps)
                if not again.duplicate:
                    raise AssertionError(f"{type(side.store).__name__} applied {stamps} twice")
        if stamps:
            self._applied[operation.worker] = stamps[-1].seq
        self._same("applied", *results)

    def _train_one(self, store: Store, operation: Train, stamps: Sequence[BatchStamp]) -> Applied:
        pairs = []
        times: list[int] = []
        for batch, stamp in zip(operation.batches, stamps, strict=True):
            plan = self._plan(store, batch, stamp)
            rows = store.read(plan, after=min(self._seq - 1, store.flush(timeout_seconds=10)), train=True).result()
            pairs.append((plan, torch.from_numpy(self._gradient(plan, batch, len(rows.values)))))
            rng = np.random.default_rng(batch.seed)
            times += (operation.time + rng.integers(0, 1000, len(plan.inverse))).tolist()
        rates = np.linspace(0.05, 0.2, store.schema.num_segments, dtype=np.float32)
        rule = Update(
            seq=self._seq,
            step=self._seq,
            learning_rates=torch.from_numpy(rates),
            times=torch.tensor(times, dtype=torch.int64) if operation.times_per_id else operation.time,
            scale=operation.scale,
        )
        return store.apply(pairs, rule).result()

    def _discard(self, operation: Discard) -> None:
        stamp = self._next_stamp(0)
        for side in self._sides:
            plan = self._plan(side.store, operation.batch, stamp)
            side.store.read(plan, after=self._seq, train=True).result()
            side.store.discard(plan)
        self._same("open plans", *(side.store.stats().open_plans for side in self._sides))

    def _assign(self, operation: Assign) -> None:
        table = self._reference.store.schema.tables[operation.table]
        rng = np.random.default_rng(operation.seed)
        by_bucket: dict[int, list[tuple[int, int, bytes]]] = {}
        for key in dict.fromkeys(operation.ids):
            weights = rng.standard_normal(table.dim).astype(np.float32)
            payload = weights.tobytes() + bytes(table.state_bytes)
            by_bucket.setdefault(bucket_of_id(key), []).append((key, operation.time, payload))
            self._seen.add((operation.table, key))
        for bucket, rows in by_bucket.items():
            block = build_block(
                BlockKind.FULL, digest=table.digest, table=operation.table, bucket=bucket, epoch=0, rows=rows
            )
            for side in self._sides:
                side.store.assign(block, add=operation.add)

    def _follow(self, operation: FollowChanges) -> None:
        for side in self._sides:
            mark = side.store.mark()
            _replay(side.follower, side.store.changes(since=side.mark, state=True))
            if operation.forget:
                side.store.forget(before=mark)
            side.mark = mark
            self._compare("follower", side.follower, self._contents(side.store))

    def _reload(self, operation: Reload) -> None:
        for side in self._sides:
            cut = side.store.cut(seq=self._seq)
            if operation.disturb is not None:
                self._disturb(side.store, operation.disturb)
            fresh = ReferenceStore(self._configs) if side is self._reference else self._make_store(self._configs)
            half = NUM_BUCKETS // 2
            for buckets in (range(half), range(half, NUM_BUCKETS)):
                fresh.load(cut.blocks(buckets, state=True), buckets=buckets, replace=True)
            fresh.resume(seq=cut.seq, applied=cut.applied, generation=cut.mark.generation + 1)
            cut.release()
            side.store, side.follower = fresh, {}
            side.mark = Mark(cut.mark.generation + 1, 0)

    def _disturb(self, store: Store, batch: Batch) -> None:
        """Changes rows after the cut; the cut must not see it. The stamp is of a worker nobody else is."""
        plan = self._plan(store, batch, BatchStamp(worker=999, seq=self._seq + 1))
        gradient = np.ones(sum(self._dims[table] for table in self._tables_of(plan)), np.float32)
        rates = torch.ones(store.schema.num_segments)
        rule = Update(seq=self._seq + 1, step=0, learning_rates=rates, times=2**31)
        store.apply([(plan, torch.from_numpy(gradient))], rule).result()

    # Comparing

    def _compare_reads(self) -> None:
        """Everything ever named, as a reader sees it."""
        ids = [sorted(key for table, key in self._seen if table == number) for number in range(len(self._dims))]
        batch = Batch(ids=tuple(tuple(keys) for keys in ids))
        stamp = BatchStamp(worker=0, seq=2**40)
        values = []
        for side in self._sides:
            plan = self._plan(side.store, batch, stamp)
            values.append(side.store.read(plan, after=self._seq, train=False).result().values.numpy())
        self._close("rows", *values)
        self._same("number of rows", *(side.store.stats().rows for side in self._sides))

    def _compare_cuts(self) -> None:
        self._compare("contents", *(self._contents(side.store) for side in self._sides))

    def _contents(self, store: Store) -> Contents:
        cut = store.cut(seq=self._seq)
        contents: Contents = {}
        _replay(contents, cut.blocks(range(NUM_BUCKETS), state=True))
        self._same("applied batches", {w: s.seq for w, s in cut.applied.items()}, self._applied)
        cut.release()
        return contents

    def _compare(self, what: str, engine: Contents, reference: Contents) -> None:
        self._same(f"{what}: ids", sorted(engine), sorted(reference))
        for pair, (time, payload) in engine.items():
            self._same(f"{what}: time of {pair}", time, reference[pair][0])
            floats = (np.frombuffer(data, np.float32) for data in (payload, reference[pair][1]))
            self._close(f"{what}: payload of {pair}", *floats)

    def _same(self, what: str, engine: object, reference: object) -> None:
        if engine != reference:
            raise AssertionError(f"{what}: expected {reference}, got {engine}")

    def _close(self, what: str, engine: NDArray[np.float32], reference: NDArray[np.float32]) -> None:
        if self._exact:
            np.testing.assert_array_equal(engine.view(np.uint32), reference.view(np.uint32), err_msg=what)
        else:
            np.testing.assert_allclose(engine, reference, rtol=1e-4, atol=1e-6, err_msg=what)

    # Batches

    def _next_stamp(self, worker: int) -> BatchStamp:
        self._stamps[worker] = self._stamps.get(worker, -1) + 1
        return BatchStamp(worker=worker, seq=self._stamps[worker], position=b"%d" % self._stamps[worker])

    def _plan(self, store: Store, batch: Batch, stamp: BatchStamp) -> Plan:
        self._seen |= {(table, key) for table, keys in enumerate(batch.ids) for key in keys}
        flat = torch.tensor([key for keys in batch.ids for key in keys], dtype=torch.int64)
        splits = np.cumsum([0, *(len(keys) for keys in batch.ids)])
        return store.plan(flat, torch.from_numpy(splits), stamp=stamp)

    def _tables_of(self, plan: Plan) -> NDArray[np.int64]:
        """The table of each unique id."""
        sizes = np.diff(plan.splits.numpy())
        return np.repeat(np.tile(np.arange(len(self._dims)), NUM_BUCKETS), sizes)

    def _gradient(self, plan: Plan, batch: Batch, num_values: int) -> NDArray[np.float32]:
        """Wide in scale, with zeros and negative zeros; in tables that skip them, some that are not finite."""
        tables = self._tables_of(plan)
        owners = np.repeat(tables, [self._dims[table] for table in tables])
        self._same("number of values", num_values, len(owners))
        rng = np.random.default_rng(batch.seed)
        values = rng.standard_normal(num_values) * 10.0 ** rng.integers(-6, 4, num_values)
        values[rng.random(num_values) < 0.1] *= -0.0
        bad = self._skips[owners] & (rng.random(num_values) < 0.05)
        values[bad] = rng.choice([np.nan, np.inf, -np.inf], int(bad.sum()))
        return values.astype(np.float32)


def _replay(contents: Contents, blocks: Iterable[RowBlock]) -> None:
    for block in blocks:
        if block.kind is BlockKind.FILTER:
            continue
        for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
            if block.kind is BlockKind.TOMBSTONE:
                contents.pop((block.table, key), None)
            elif block.kind is BlockKind.FULL:
                contents[block.table, key] = (time, payload.tobytes())
