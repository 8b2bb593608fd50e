"""What the core says of pushes, latest rows and loads, as Python sees it."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import Segment, TableConfig
from monolith.tables.formats.row_block import BlockKind, RowBlock
from monolith.tables.initializers import Ones, Zeros
from monolith.tables.local.native_tables import NativeTables
from monolith.tables.row_optimizers import Adagrad, DelayCompensated, Sgd
from monolith.testing.reference_format import bucket_of_id, build_block, build_filter_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAMBDA = 0.25
TIMES = np.array([5])
PER_UNIQUE_ID = 1


def plain_group() -> _core.Group:
    segment = Segment(2, initializer=Zeros(), optimizer=Sgd())
    return NativeTables({"user": TableConfig([segment])}).core


def apply_ones(group: _core.Group, *pushes: _core.Push, ids: range = range(3)) -> _core.Applied:
    """Takes 1 from every weight of the ids."""
    plan = group.plan(np.array(ids), np.array([0, len(ids)]), True)
    gradients = np.ones(group.num_values(plan), np.float32)
    rates = np.ones(1, np.float32)
    return group.apply(plan, gradients, PER_UNIQUE_ID, None, None, rates, 0, TIMES, 1.0, None, pushes=pushes)


def push_of(incarnation: int, seq: int, previous: int, *, worker: int = 3) -> _core.Push:
    return _core.Push(
        worker=worker,
        incarnation=incarnation,
        first_seq=seq,
        seq=seq,
        previous=previous,
        position=b"\x00at %d" % seq,
        event_time_ms=1000 + seq,
    )


def fields(stamp: _core.BatchStamp | None) -> tuple[int, int, bytes, int] | None:
    return None if stamp is None else (stamp.worker, stamp.seq, stamp.position, stamp.event_time_ms)


def weights_of(group: _core.Group, ids: range = range(3)) -> list[float]:
    values = np.empty(2 * len(ids), np.float32)
    group.lookup(np.array(ids), np.array([0, len(ids)]), values, 0)
    return sorted(set(values.tolist()))


def test_an_update_and_its_stamp_are_applied_once() -> None:
    group = plain_group()
    incarnation, last = group.join(3)
    assert last is None
    first = apply_ones(group, push_of(incarnation, 0, -1))
    assert (first.inserted, first.duplicate) == (3, False)
    again = apply_ones(group, push_of(incarnation, 0, -1))
    assert (again.updated, again.duplicate) == (0, True)
    with pytest.raises(FailedPreconditionError, match="batch 5 names batch 4 as the push before it, but the last one"):
        apply_ones(group, push_of(incarnation, 5, 4))
    assert weights_of(group) == [-1.0]
    assert group.last_applied(3) == 0
    assert group.last_applied(4) == -1
    assert not apply_ones(group).duplicate


def test_an_update_of_several_workers_is_applied_once_with_all_their_stamps() -> None:
    group = plain_group()
    first, second = group.join(3)[0], group.join(4)[0]
    pushes = [push_of(second, 0, -1, worker=4), push_of(first, 0, -1)]
    assert not group.is_duplicate(pushes)
    assert not apply_ones(group, *pushes).duplicate
    assert group.is_duplicate(pushes)
    assert apply_ones(group, *pushes).duplicate
    assert [fields(stamp) for stamp in group.stamps()] == [(w, 0, b"\x00at 0", 1000) for w in (3, 4)]
    part = [push_of(first, 1, 0), push_of(second, 0, -1, worker=4)]
    with pytest.raises(FailedPreconditionError, match="worker 4: batch 0 was applied before, but batch 1 of worker 3,"):
        apply_ones(group, *part)
    with pytest.raises(FailedPreconditionError, match="worker 4: batch 2 names batch 1 as the push before it"):
        apply_ones(group, push_of(first, 1, 0), push_of(second, 2, 1, worker=4))
    with pytest.raises(InvalidArgumentError, match="worker 3: two pushes were given for one update"):
        apply_ones(group, push_of(first, 1, 0), push_of(first, 1, 0))
    assert weights_of(group) == [-1.0]
    assert group.last_applied(3) == 0


def test_a_restarted_worker_finds_what_was_applied_and_its_old_incarnation_is_over() -> None:
    group = plain_group()
    old, _ = group.join(3)
    apply_ones(group, push_of(old, 7, -1))
    new, last = group.join(3)
    assert fields(last) == (3, 7, b"\x00at 7", 1007)
    over = rf"worker 3: this incarnation \({old}\) is over, a later one \({new}\) has joined; join again"
    with pytest.raises(FailedPreconditionError, match=over):
        apply_ones(group, push_of(old, 8, 7))
    with pytest.raises(FailedPreconditionError, match=over):
        group.require_current(3, old)
    group.require_current(3, new)
    assert apply_ones(group, push_of(new, 8, 7)).updated == 3
    assert weights_of(group) == [-2.0]


def test_a_resume_replaces_the_stamps_and_ends_every_incarnation() -> None:
    group = plain_group()
    old, _ = group.join(3)
    apply_ones(group, push_of(old, 7, -1))
    group.resume([_core.BatchStamp(8, 2, b"", 0), _core.BatchStamp(1, 9, b"p", 4)])
    assert [fields(stamp) for stamp in group.stamps()] == [(1, 9, b"p", 4), (8, 2, b"", 0)]
    with pytest.raises(FailedPreconditionError, match="is over: the store was resumed from a saved state; join again"):
        group.require_current(3, old)
    assert fields(group.join(1)[1]) == (1, 9, b"p", 4)
    with pytest.raises(InvalidArgumentError, match="worker 1: two stamps were given"):
        group.resume([_core.BatchStamp(1, 2, b"", 0), _core.BatchStamp(1, 3, b"", 0)])


def test_a_cut_holds_the_batches_that_its_stamps_name() -> None:
    group = plain_group()
    done = threading.Event()

    def push_all(worker: int) -> None:
        incarnation, _ = group.join(worker)
        for seq in range(200):
            apply_ones(group, push_of(incarnation, seq, seq - 1, worker=worker))
        done.set()

    threads = [threading.Thread(target=push_all, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    cuts = 0
    while not done.is_set() or cuts == 0:
        cut = group.cut()
        applied = sum(stamp.seq + 1 for stamp in cut.stamps)
        blocks = [RowBlock(block) for block in cut.blocks(0, 1024, True)]
        cut.release()
        held = {float(weight) for block in blocks for weight in block.weights(2).reshape(-1)}
        assert held == ({-float(applied)} if applied else set())
        cuts += 1
    for thread in threads:
        thread.join()
    assert [stamp.seq for stamp in group.stamps()] == [199, 199, 199]
    assert weights_of(group) == [-600.0]


def compensated_group() -> _core.Group:
    return NativeTables(
        {
            "item": TableConfig(
                [
                    Segment(3, initializer=Ones(), optimizer=DelayCompensated(Sgd(), LAMBDA)),
                    Segment(1, initializer=Ones(), optimizer=Sgd()),
                ]
            ),
            "user": TableConfig([Segment(2, initializer=Ones(), optimizer=Adagrad())]),
            "word": TableConfig([Segment(2, initializer=Ones(), optimizer=DelayCompensated(Sgd(), LAMBDA))]),
        }
    ).core


def test_latest_rows_per_unique_id_reach_the_optimizer() -> None:
    group = compensated_group()
    assert [group.uses_latest(table) for table in range(3)] == [True, False, True]
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 400, 900)
    plan = group.plan(ids, np.array([0, 500, 600, 900]), True)
    count = group.num_values(plan)
    rates = np.array([0.5, 2.0, 1.0, 0.25], np.float32)

    def read() -> NDArray[np.float64]:
        values = np.empty(count, np.float32)
        group.read(plan, values, 0)
        return values.astype(np.float64)

    def step(gradients: NDArray[np.float32], latest: NDArray[np.float32] | None) -> None:
        group.apply(plan, gradients, PER_UNIQUE_ID, None, None, rates, 0, TIMES, 1.0, latest)

    step(rng.normal(size=count).astype(np.float32), None)
    before = read()
    gradients, latest = (rng.normal(size=count).astype(np.float32) for _ in range(2))
    step(gradients, latest)
    # What the values of each unique id are, in plan order: its table decides lambda and rate of every column.
    lambdas, rate_of = {0: [LAMBDA] * 3 + [0.0], 2: [LAMBDA] * 2}, {0: [0.5] * 3 + [2.0], 2: [0.25] * 2}
    dims = [4, 2, 2]
    tables = [table for cell, size in enumerate(np.diff(plan.splits)) for table in [cell % 3] * int(size)]
    of_value = np.repeat(tables, [dims[table] for table in tables])
    compensation = np.concatenate([lambdas.get(table, [0.0, 0.0]) for table in tables])
    rate = np.concatenate([rate_of.get(table, [0.0, 0.0]) for table in tables])
    g = gradients.astype(np.float64)
    expected = before - rate * (g + compensation * g * g * (before - latest))
    learned_by_sgd = of_value != 1
    np.testing.assert_allclose(read()[learned_by_sgd], expected[learned_by_sgd], rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidArgumentError, match=f"latest must have {count} elements, got {count - 1}"):
        step(gradients, latest[1:])


def blocks_for(digest: int) -> list[bytes]:
    """Two rows, a tombstone and a filter in each of five buckets."""
    blocks = []
    for first in range(5):
        bucket = bucket_of_id(first)
        keys = [key for key in range(100_000) if bucket_of_id(key) == bucket][:3]
        rows = [(key, 7, np.ones(2, np.float32).tobytes()) for key in keys[:2]]
        where = {"digest": digest, "table": 0, "bucket": bucket, "epoch": 1}
        blocks += [
            build_block(BlockKind.FULL, rows=rows, **where),
            build_block(BlockKind.TOMBSTONE, rows=[(keys[2], 1, b"")], **where),
            build_filter_block(bucket=bucket, epoch=0, payload=b""),
        ]
    return [block.data for block in blocks]


def test_a_load_counts_what_it_loaded_and_what_it_ignored() -> None:
    group = plain_group()
    bucket = bucket_of_id(2)
    blocks = blocks_for(group.digest(0))
    group.check(blocks, (bucket, bucket + 1), None)
    loaded = group.load(blocks, (bucket, bucket + 1), None)
    assert (loaded.rows, loaded.tombstones, loaded.filters, loaded.ignored) == (2, 1, 1, 4 * (2 + 1 + 1))
    assert group.size(0) == 2


@pytest.mark.slow
def test_blocks_of_another_schema_are_refused_before_anything_is_written() -> None:
    group = plain_group()
    foreign = blocks_for(0xABC)[3]
    message = re.escape(
        f"{RowBlock(foreign)!r} has schema digest 0x0000000000000abc, which is not that of this store's table 0;"
        " compare the two stores' schema.text"
    )
    for call in (group.load, group.check):
        with pytest.raises(FailedPreconditionError, match=message):
            call([*blocks_for(group.digest(0)), foreign], (0, 1024), None)
    assert group.size(0) == 0
