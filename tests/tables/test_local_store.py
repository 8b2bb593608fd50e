"""What the in-process store promises beyond the contract of all stores: order under threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import (
    BatchStamp,
    BlockKind,
    LocalStore,
    Segment,
    TableConfig,
    TableGroup,
    Traits,
    Update,
)
from monolith.tables.compressors import OneBit
from monolith.tables.initializers import Ones
from monolith.tables.row_optimizers import DelayCompensated, Sgd

SPLITS = torch.tensor([0, 50])
IDS = torch.arange(50)


def unit_update(seq: int, **more: Any) -> Update:
    return Update(previous=seq - 1, step=0, learning_rates=torch.ones(1), times=0, **more)


def test_a_cut_under_updates_holds_exactly_the_batches_its_stamps_name() -> None:
    store = LocalStore({"user": TableConfig([Segment(1, optimizer=Sgd())])})
    enough, trained = threading.Event(), [0] * 3

    def train(worker: int) -> None:
        session = store.join(worker)
        while not enough.is_set():
            seq = trained[worker]
            plan = session.plan(IDS, SPLITS, stamp=BatchStamp(worker=worker, seq=seq))
            session.apply([(plan, -torch.ones(50))], unit_update(seq)).result()
            trained[worker] += 1

    threads = [threading.Thread(target=train, args=(worker,)) for worker in range(len(trained))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            while not store.stats().applied:
                time.sleep(0.001)
            with store.cut() as cut:
                (clock,) = cut.applied
                applied = sum(stamp.seq + 1 for stamp in clock.stamps.values())
                blocks = [block for block in cut.blocks(range(1024), state=True) if block.kind is BlockKind.FULL]
            values = {value for block in blocks for value in block.weights(1).flatten().tolist()}
            assert values == {float(applied)}
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert TableGroup.of_store(store)["user"].lookup([7]).item() == sum(trained)


def test_it_is_local_and_exact() -> None:
    assert LocalStore({"user": TableConfig([Segment(1)])}).traits == Traits(
        collective=False, remote=False, device="cpu", exact=True
    )


def test_stats_count_all_tables() -> None:
    store = LocalStore({"a": TableConfig([Segment(1)]), "b": TableConfig([Segment(4)])})
    TableGroup.of_store(store)["b"].assign([1, 2], np.ones((2, 4), np.float32))
    stats = store.stats()
    assert (stats.rows, stats.applied, stats.open_plans) == (2, {}, 0)
    assert stats.memory_bytes > 0
    assert stats.tables["b"]["rows"] == 2


def test_a_read_is_quantised_for_the_given_step() -> None:
    compressor = OneBit(step_size=1, amplitude=1.0)
    store = LocalStore({"user": TableConfig([Segment(1, initializer=Ones(), compressor=compressor)])})
    table = TableGroup.of_store(store)["user"]
    table.apply_gradients([3], [[0.0]])
    session = store.join(0)
    plan = session.plan(torch.tensor([3]), torch.tensor([0, 1]), stamp=BatchStamp(worker=0, seq=0))
    for step, expected in ((0, np.tanh(1.0)), (400, np.tanh(np.sqrt(1 + 0.005 * 400)))):
        found = session.read(plan, after=-1, step=step, train=False).result().values.item()
        assert found == pytest.approx(expected)
        assert found == store.read(plan, step=step).result().values.item() == table.lookup([3], step=step).item()


def test_rows_that_changed_meanwhile_are_compensated_for() -> None:
    rule = DelayCompensated(Sgd(learning_rate=1.0), 0.5)
    configs = {"a": TableConfig([Segment(1)]), "b": TableConfig([Segment(2, optimizer=rule)])}
    store = LocalStore(configs)
    slow, quick = store.join(0), store.join(1)
    splits = torch.tensor([0, 2, 4])
    ids = torch.tensor([1, 2, 1, 2])
    plans = [each.plan(ids, splits, stamp=BatchStamp(worker=each.worker, seq=0)) for each in (slow, quick)]
    ones = torch.ones(6)
    rates = torch.ones(2)
    seen = slow.read(plans[0], after=-1, step=0, train=True).result().values
    table_of_value = plans[0].tables.repeat_interleave(torch.tensor([1, 2])[plans[0].tables])
    quick.apply([(plans[1], ones)], Update(previous=-1, step=0, learning_rates=rates, times=0)).result()
    update = Update(previous=-1, step=0, learning_rates=rates, times=0, latest=[seen[table_of_value == 1]])
    slow.apply([(plans[0], ones)], update).result()
    values = store.read(plans[0], step=1).result().values
    # -1 by the quick one; then 1 + 0.5 * 1 * (-1 - 0) = 0.5
    assert torch.equal(values, torch.tensor([-2.0, -1.5])[table_of_value])


def test_a_worker_that_joins_again_resumes_and_its_older_incarnation_is_rejected() -> None:
    store = LocalStore({"user": TableConfig([Segment(1, optimizer=Sgd())])})
    first = store.join(0)
    for seq in range(3):
        plan = first.plan(IDS, SPLITS, stamp=BatchStamp(worker=0, seq=seq, position=b"%d" % seq))
        first.apply([(plan, -torch.ones(50))], unit_update(seq)).result()
    second = store.join(0)
    assert (second.applied, second.next_seq) == (BatchStamp(worker=0, seq=2, position=b"2"), 3)
    plan = second.plan(IDS, SPLITS, stamp=BatchStamp(worker=0, seq=3))
    for call in (
        lambda: first.apply([(plan, -torch.ones(50))], unit_update(3)),
        lambda: first.read(plan, after=2, step=3, train=True),
        lambda: first.flush(timeout_seconds=1),
        first.cut,
        lambda: first.evict(now=0),
    ):
        with pytest.raises(
            FailedPreconditionError, match=r"worker 0: this incarnation \(1\) is over, a later one \(2\)"
        ):
            call()
    second.apply([(plan, -torch.ones(50))], unit_update(3)).result()
    assert store.read(plan, step=4).result().values.tolist() == [4.0] * 50


def test_loading_blocks_does_not_describe_the_schema_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = (LocalStore({"user": TableConfig([Segment(4)])}) for _ in range(2))
    TableGroup.of_store(source)["user"].assign(np.arange(1000), np.ones((1000, 4), np.float32))
    with source.cut() as cut:
        blocks = list(cut.blocks())
    assert len(blocks) > 500
    described: list[str] = []
    monkeypatch.setattr("monolith.tables.schema.fnv1a_64", described.append)
    assert target.load(blocks, buckets=range(1024), replace=True).rows == 1000
    assert described == []


def test_latest_rows_that_do_not_go_with_the_plans_are_refused() -> None:
    store = LocalStore({"user": TableConfig([Segment(1)])})
    session = store.join(0)
    plan = session.plan(IDS, SPLITS, stamp=BatchStamp(worker=0, seq=0))
    with pytest.raises(InvalidArgumentError, match=r"latest must have one tensor per plan \(1\), got 0"):
        session.apply([(plan, torch.ones(50))], unit_update(0, latest=[]))
    assert store.stats().rows == 0


def test_a_plan_counts_once_in_an_update() -> None:
    store = LocalStore({"user": TableConfig([Segment(1)])})
    session = store.join(0)
    plan = session.plan(IDS, SPLITS, stamp=BatchStamp(worker=0, seq=0))
    with pytest.raises(InvalidArgumentError, match="each once"):
        session.apply([(plan, torch.ones(50)), (plan, torch.ones(50))], unit_update(0))


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_refused(scale: float) -> None:
    store = LocalStore({"user": TableConfig([Segment(1)])})
    session = store.join(0)
    plan = session.plan(IDS, SPLITS, stamp=BatchStamp(worker=0, seq=0))
    with pytest.raises(InvalidArgumentError, match="local store: scale must be finite"):
        session.apply([(plan, torch.ones(50))], unit_update(0, scale=scale))
    assert store.stats().rows == 0
    assert session.flush(timeout_seconds=60) == -1


def test_stamps_and_updates_are_checked_when_they_are_made() -> None:
    with pytest.raises(InvalidArgumentError, match="worker and seq must be >= 0, got worker -1, seq 0"):
        BatchStamp(worker=-1, seq=0)
    with pytest.raises(InvalidArgumentError, match="event_time_ms must be Unix milliseconds >= 0, got -5"):
        BatchStamp(worker=0, seq=0, event_time_ms=-5)
    with pytest.raises(InvalidArgumentError, match="step must be >= 0 and previous >= -1, got step -1, previous -2"):
        Update(previous=-2, step=-1, learning_rates=torch.ones(1), times=0)
