"""`CudaStore` on the processor, where the contract of all stores does not reach: against `LocalStore`, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contracts.engines import StoreFactory, engine
from contracts.one_worker import ONE_TABLE, Worker, blocks_of, rows_of, stamp
from contracts.store_contents import changes_of, require_same_rows
from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError, UnavailableError
from monolith.tables import CudaStore, DeviceSizes, LocalStore, Segment, Store, TableConfig, Update, snapshot
from monolith.tables import row_optimizers as ro
from monolith.tables.batch import Applied, Plan
from monolith.tables.compressors import Bf16, Compressor, FixedR8, Fp16, OneBit
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.initializers import Initializer, RandomNormal, RandomUniform
from tables.test_compressors import ALL as COMPRESSORS
from tables.test_forks import busy, exit_code_of_child
from tables.test_initializers import EXAMPLES
from tables.test_row_optimizers import VARIANTS
from tables.test_row_optimizers import label as rule_name

SMALL = DeviceSizes(chunk_bits=3, segment_bits=1)
EXTREMES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**48 - 1, 2**48, 2**63 - 2, 2**63 - 1]


def on_processor(configs: dict[str, TableConfig], *, shuffled: bool = False) -> CudaStore:
    launcher = _core.DeviceLauncher.on_cpu(shuffled=shuffled)
    return CudaStore(configs, device="cpu", sizes=SMALL, launcher=launcher)


class Trainer:
    """Trains any tables; the number of a batch determines its gradients."""

    def __init__(self, store: LocalStore | CudaStore) -> None:
        self.store = store
        self.session = store.join(0)
        self.seq = 0

    def plan(self, ids: Sequence[Tensor]) -> Plan:
        splits = torch.tensor([0, *np.cumsum([len(each) for each in ids]).tolist()])
        return self.session.plan(torch.cat(list(ids)), splits, stamp=stamp(self.seq))

    def step(self, ids: Sequence[Tensor], *, latest: bool = False) -> tuple[Tensor, Applied]:
        """Returns the values that it read, and what was applied."""
        plan = self.plan(ids)
        values = self.session.read(plan, after=self.seq - 1, step=self.seq, train=True).result().values.cpu()
        noise = torch.Generator().manual_seed(self.seq)
        gradient = torch.randn(plan.num_values, generator=noise)
        rule = Update(
            previous=self.seq - 1,
            step=self.seq,
            learning_rates=torch.full((len(self.store.learning_rates_at(0)),), 0.25),
            times=1000 + self.seq,
            scale=0.5 if self.seq % 2 else 1.0,
            latest=[values * 0.5] if latest else None,
        )
        applied = self.session.apply([(plan, gradient)], rule).result()
        self.seq += 1
        return values, applied


def contents_of(store: Store) -> Any:
    return changes_of(blocks_of(store)).rows


def require_equal_stores(configs: dict[str, TableConfig], steps: Iterable[Sequence[Tensor]], *, latest: bool) -> None:
    """Trains a store of each engine by the same steps."""
    local, ours = Trainer(LocalStore(configs)), Trainer(on_processor(configs))
    for ids in steps:
        (values, applied), (expected, wanted) = ours.step(ids, latest=latest), local.step(ids, latest=latest)
        assert torch.equal(values.view(torch.int32), expected.view(torch.int32))
        assert applied == wanted
    require_same_rows("rows", contents_of(ours.store), contents_of(local.store), exact=True)


def some_ids(count: int, seed: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=noise)[
        torch.randint(0, count, (2 * count,), generator=noise)
    ]


# Rules


def steps_of_one_table() -> list[list[Tensor]]:
    return [[some_ids(20, seed % 3)] for seed in range(4)]


@pytest.mark.parametrize("rule", VARIANTS, ids=rule_name)
def test_every_rule_learns_the_same_bits(rule: ro.RowOptimizer) -> None:
    dims = [1] if isinstance(rule, ro.BatchSoftmax) else [1, 3, 8]
    segments = [Segment(dim, optimizer=rule, initializer=RandomUniform(-0.5, 0.5)) for dim in dims]
    config = {"t": TableConfig(segments)}
    for latest in (False, True):
        require_equal_stores(config, steps_of_one_table(), latest=latest)


@pytest.mark.parametrize("initializer", EXAMPLES.values(), ids=lambda value: type(value).__name__)
def test_every_initializer_starts_the_same_rows(initializer: Initializer) -> None:
    config = {"t": TableConfig([Segment(5, initializer=initializer), Segment(4, initializer=RandomNormal())])}
    require_equal_stores(config, steps_of_one_table(), latest=False)


@pytest.mark.parametrize("compressor", [*COMPRESSORS, Bf16(), Fp16()], ids=repr)
def test_every_compressor_is_read_alike(compressor: Compressor) -> None:
    config = {"t": TableConfig([Segment(5, compressor=compressor), Segment(3, compressor=OneBit(step_size=2))])}
    require_equal_stores(config, steps_of_one_table(), latest=False)


def test_half_weights_are_rounded_alike() -> None:
    rule = ro.Adagrad(stochastic_rounding=True)
    config = {"t": TableConfig([Segment(5, optimizer=rule, compressor=FixedR8())])}
    require_equal_stores(config, steps_of_one_table(), latest=False)


# Sizes


@pytest.mark.parametrize("dim", [1, 3, 5, 1024])
def test_dims(dim: int) -> None:
    require_equal_stores({"t": TableConfig([Segment(dim)])}, steps_of_one_table(), latest=False)


def test_500_tables() -> None:
    configs = {f"t{number:03}": TableConfig([Segment(1 + number % 5)]) for number in range(500)}
    steps = [[some_ids(2, 500 * step + table) for table in range(500)] for step in range(2)]
    require_equal_stores(configs, steps, latest=False)


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([], id="none"),
        pytest.param([7], id="one"),
        pytest.param([7] * 65_536, id="one 65,536 times"),
        pytest.param(EXTREMES, id="extremes"),
    ],
)
def test_batches(ids: list[int]) -> None:
    batch = torch.tensor(ids, dtype=torch.int64)
    require_equal_stores({"t": TableConfig([Segment(4)])}, [[batch], [batch]], latest=False)


@pytest.mark.slow
def test_a_million_ids_in_one_batch() -> None:
    batch = torch.arange(1 << 20) * 0x9E3779B97F4A7C1  # spread over half of int64
    configs = {"t": TableConfig([Segment(1)])}
    stores: list[LocalStore | CudaStore] = [LocalStore(configs), CudaStore(configs, device="cpu")]
    for store in stores:
        assert Trainer(store).step([batch])[1].inserted == 1 << 20
    plans = [store.plan(batch, torch.tensor([0, 1 << 20]), stamp=stamp(9)) for store in stores]
    assert torch.equal(plans[0].unique_ids, plans[1].unique_ids)
    values = [store.read(plan, step=0).result().values for store, plan in zip(stores, plans, strict=True)]
    assert torch.equal(values[0], values[1])


# Bad input


def test_serving_tables_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'t' is a serving table"):
        on_processor({"t": TableConfig([Segment(2)], serving=True)})


@pytest.mark.parametrize("device", ["meta", "cuda", "nonsense"])
def test_devices_that_are_none(device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    kind, text = (UnavailableError, "finds no GPU") if device == "cuda" else (InvalidArgumentError, "device must be")
    with pytest.raises(kind, match=text):
        CudaStore(ONE_TABLE, device=device)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_ids_and_gradients_in_any_kind_of_array(make: Any) -> None:
    store = on_processor(ONE_TABLE)
    plan = store.join(0).plan(make([7, 8, 7]), torch.tensor([0, 3]), stamp=stamp(0))
    assert sorted(plan.unique_ids.tolist()) == [7, 8]
    gradient = make([0.5, 0.5, 1.0, 1.0])
    assert store.on_device(gradient if make is not np.array else gradient.astype(np.float32), (4,), "g").tolist()
    with pytest.raises(InvalidArgumentError, match="meta"):
        store.join(0).plan(torch.empty(1, dtype=torch.int64, device="meta"), torch.tensor([0, 1]), stamp=stamp(0))


def test_gradients_that_do_not_fit_change_nothing() -> None:
    store = on_processor(ONE_TABLE)
    worker = Worker(store)
    worker.train([1, 2])
    before = contents_of(store)
    plan = worker.plan([1, 2, 3], 1)
    rule = Update(previous=0, step=0, learning_rates=torch.ones(1), times=0)
    for gradient, error in [
        (torch.ones(6, dtype=torch.float64), TypeError),
        (torch.ones(6, dtype=torch.float16), TypeError),
        (torch.ones(5), InvalidArgumentError),
        (torch.ones(2, 3), InvalidArgumentError),
        (torch.full((6,), torch.nan), InvalidArgumentError),
    ]:
        with pytest.raises(error):
            worker.session.apply([(plan, gradient)], rule).result()
        assert contents_of(store) == before
    assert worker.session.apply([(plan, torch.ones(6))], rule).result().updated == 3


def test_gradients_in_any_memory_layout() -> None:
    stores: list[Store] = [on_processor(ONE_TABLE), LocalStore(ONE_TABLE)]
    wide = torch.arange(12, dtype=torch.float32)
    for gradient in (wide[::2].requires_grad_(), wide.requires_grad_()[::2], wide.flip(0)[:6], wide[6:]):
        for store in stores:
            worker = Worker(store)
            plan = worker.plan([1, 2, 3], worker.last + 1)
            rule = Update(previous=worker.last, step=0, learning_rates=torch.ones(1), times=0)
            worker.session.apply(
                [(plan, gradient.detach() if isinstance(store, LocalStore) else gradient)], rule
            ).result()
    require_same_rows("rows", contents_of(stores[0]), contents_of(stores[1]), exact=True)


@pytest.mark.parametrize("failures", [1, 2])
def test_memory_that_torch_has_cached_is_returned_for_an_update(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    store = on_processor(ONE_TABLE)
    returned: list[int] = []

    class Full:
        """Rows that find no memory until torch has returned what it has cached often enough."""

        def __getattr__(self, name: str) -> Any:
            return getattr(rows, name)

        def apply(self, *arguments: Any) -> Any:
            if len(returned) < failures:
                raise ResourceExhaustedError("memory for 8 bytes")
            return rows.apply(*arguments)

    rows = store.rows
    monkeypatch.setattr(store, "rows", Full())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: returned.append(1))
    if failures == 1:
        Worker(store).train([1])
    else:
        with pytest.raises(ResourceExhaustedError, match="memory for 8 bytes"):
            Worker(store).train([1])
    monkeypatch.setattr(store, "rows", rows)
    assert len(returned) == 1
    assert rows_of(store, [1]) == [[-1.0, -1.0] if failures == 1 else [0.0, 0.0]]


def test_plans_of_another_store_are_refused() -> None:
    first, second, local = on_processor(ONE_TABLE), on_processor(ONE_TABLE), LocalStore(ONE_TABLE)
    foreign = [Worker(store).plan([1], 0) for store in (second, local)]
    worker = Worker(first)
    for plan in foreign:
        with pytest.raises((InvalidArgumentError, FailedPreconditionError, TypeError)):
            worker.session.read(plan, after=-1, step=0, train=True)
        with pytest.raises((InvalidArgumentError, FailedPreconditionError, TypeError)):
            worker.push(plan)
    assert first.stats().rows == 0


def test_a_closed_store_is_still_read() -> None:
    store = on_processor(ONE_TABLE)
    Worker(store).train([1])
    store.close()
    store.close()
    assert rows_of(store, [1]) == [[-1.0, -1.0]]


# Threads and processes


@pytest.mark.parametrize("shuffled", [False, True])
def test_two_stores_from_several_threads(*, shuffled: bool) -> None:
    """Each worker has ids of its own, so that the result does not depend on the order of their calls."""
    stores = [on_processor(ONE_TABLE, shuffled=shuffled) for _ in range(2)]
    errors: list[BaseException] = []

    def train(number: int) -> None:
        try:
            workers = [Worker(store, number) for store in stores]
            for step in range(8):
                for worker in workers:
                    worker.train(list(range(100 * number, 100 * number + 60 + step)))
                stores[step % 2].evict(now=0)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for store in stores:
        assert store.stats().rows == 4 * 67
        assert rows_of(store, [0, 366]) == [[-8.0, -8.0], [-1.0, -1.0]]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_the_rows_and_waits_for_no_thread() -> None:
    store = on_processor(ONE_TABLE)
    Worker(store).train([1])
    busy_worker = Worker(store, 5)

    def work() -> None:
        assert rows_of(store, [1]) == [[-1.0, -1.0]]
        Worker(store, 1).train([1])
        assert rows_of(store, [1]) == [[-2.0, -2.0]]

    with busy(lambda: busy_worker.train([7, 8, 9]), lambda: rows_of(store, list(range(2, 200)))):
        assert [exit_code_of_child(work) for _ in range(10)] == [0] * 10


# Checkpoints


def test_checkpoints_of_engines_are_restored_into_each_other(tmp_path: Path) -> None:
    names = ("local", "cuda on the processor", "three servers here")
    with engine(names[0]) as local, engine(names[1]) as ours, engine(names[2]) as servers:
        factories: list[StoreFactory] = [local, ours, servers]
        for saver in factories:
            source = saver(ONE_TABLE)
            worker = Worker(source)
            worker.train(list(range(200)), 0.5, time=3)
            worker.train(list(range(150, 300)), 0.25, time=5)
            source.erase("user", torch.arange(7))
            folder = tmp_path / str(factories.index(saver))
            with source.cut() as cut:
                snapshot.save_cut(cut, source.schema, folder, snapshot_id=7, drop_expired=False)
            expected = contents_of(source)
            assert len(expected) == 293
            source.close()
            for restorer in factories:
                target = restorer(ONE_TABLE)
                Worker(target).train([1, 999])
                snapshot.restore(target, folder)
                require_same_rows("rows", contents_of(target), expected, exact=True)
                assert target.load([], buckets=ALL_BUCKETS, replace=False).rows == 0
                target.close()
