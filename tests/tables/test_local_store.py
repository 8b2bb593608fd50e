"""What the in-process store promises beyond the contract of all stores: order under threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.tables import BatchStamp, BlockKind, LocalStore, Segment, TableConfig, Traits, Update
from monolith.tables.compressors import OneBit
from monolith.tables.initializers import Ones
from monolith.tables.row_optimizers import Sgd

SPLITS = torch.tensor([0, 50])
IDS = torch.arange(50)


def unit_update(seq: int) -> Update:
    return Update(seq=seq, step=0, learning_rates=torch.ones(1), times=0)


def test_a_cut_under_updates_holds_exactly_the_batches_its_stamps_name() -> None:
    store = LocalStore({"user": TableConfig([Segment(1, optimizer=Sgd())])})
    batches_per_worker, workers = 40, 3

    def train(worker: int) -> None:
        for seq in range(batches_per_worker):
            plan = store.plan(IDS, SPLITS, stamp=BatchStamp(worker=worker, seq=seq))
            store.apply([(plan, -torch.ones(50))], unit_update(0)).result()

    threads = [threading.Thread(target=train, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    cuts = 0
    while any(thread.is_alive() for thread in threads) and cuts < 20:
        if store.flush(timeout_seconds=1) < 0:
            continue
        cut = store.cut(seq=0)
        applied = sum(stamp.seq + 1 for stamp in cut.applied.values())
        blocks = [block for block in cut.blocks(range(1024), state=True) if block.kind is BlockKind.FULL]
        values = {value for block in blocks for value in block.weights(1).flatten().tolist()}
        cut.release()
        assert values == {float(applied)}
        cuts += 1
    for thread in threads:
        thread.join()
    assert cuts > 0
    assert store.tables["user"].lookup([7]).item() == batches_per_worker * workers


def test_it_is_local_and_exact() -> None:
    assert LocalStore({"user": TableConfig([Segment(1)])}).traits == Traits(
        collective=False, remote=False, device="cpu", exact=True
    )


def test_stats_count_all_tables() -> None:
    store = LocalStore({"a": TableConfig([Segment(1)]), "b": TableConfig([Segment(4)])})
    store.tables["b"].assign([1, 2], np.ones((2, 4), np.float32))
    stats = store.stats()
    assert (stats.rows, stats.last_seq, stats.open_plans) == (2, -1, 0)
    assert stats.memory_bytes > 0
    assert stats.tables["b"]["rows"] == 2


def test_reading_for_training_sees_the_scale_of_the_coming_step() -> None:
    compressor = OneBit(step_size=1, amplitude=1.0)
    store = LocalStore({"user": TableConfig([Segment(1, initializer=Ones(), compressor=compressor)])})
    store.tables["user"].apply_gradients([3], [[0.0]])
    store.resume(seq=399, applied={}, generation=0)
    plan = store.plan(torch.tensor([3]), torch.tensor([0, 1]), stamp=BatchStamp(worker=0, seq=0))
    early = store.read(plan, after=-1, train=False).result().values.item()
    late = store.read(plan, after=399, train=False).result().values.item()
    assert early == pytest.approx(np.tanh(1.0))
    assert late == pytest.approx(np.tanh(np.sqrt(1 + 0.005 * 400)))


def test_a_plan_counts_once_in_an_update() -> None:
    store = LocalStore({"user": TableConfig([Segment(1)])})
    plan = store.plan(IDS, SPLITS, stamp=BatchStamp(worker=0, seq=0))
    with pytest.raises(InvalidArgumentError, match="each once"):
        store.apply([(plan, torch.ones(50)), (plan, torch.ones(50))], unit_update(0))


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_refused(scale: float) -> None:
    store = LocalStore({"user": TableConfig([Segment(1)])})
    plan = store.plan(IDS, SPLITS, stamp=BatchStamp(worker=0, seq=0))
    rule = Update(seq=0, step=0, learning_rates=torch.ones(1), times=0, scale=scale)
    with pytest.raises(InvalidArgumentError, match="local store: scale must be finite"):
        store.apply([(plan, torch.ones(50))], rule)
    assert store.stats().rows == 0
    assert store.flush(timeout_seconds=1) == -1


def test_stamps_and_updates_are_checked_when_they_are_made() -> None:
    with pytest.raises(InvalidArgumentError, match="worker and seq must be >= 0, got worker -1, seq 0"):
        BatchStamp(worker=-1, seq=0)
    with pytest.raises(InvalidArgumentError, match="seq and step must be >= 0, got seq 0, step -1"):
        Update(seq=0, step=-1, learning_rates=torch.ones(1), times=0)
