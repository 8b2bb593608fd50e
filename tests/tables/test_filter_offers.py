"""A probabilistic filter draws anew at every offer of an id, also in calls that know no step, and across a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from contracts.engines import stores_of
from monolith.tables import HashTable, LocalStore, Segment, TableConfig, TableGroup, snapshot
from monolith.tables.filters import ProbabilisticFilter
from monolith.tables.formats.row_block import BlockKind, RowBlock
from monolith.tables.store import Store
from monolith.testing.reference_format import bucket_of_id, build_block

THRESHOLD = 20
CONFIG = TableConfig([Segment(1)], name="t", min_count=THRESHOLD, admission=ProbabilisticFilter(), seed=3)
NUM_IDS = 4000
IDS = np.arange(NUM_IDS)
ONES = np.ones((NUM_IDS, 1), np.float32)

CALLS: Mapping[str, Callable[[HashTable], object]] = {
    "assign": lambda table: table.assign(IDS, ONES),
    "assign_add": lambda table: table.assign_add(IDS, ONES),
    "apply_gradients": lambda table: table.apply_gradients(IDS, ONES),
    "apply_pooled_gradients": lambda table: table.apply_pooled_gradients(IDS, np.arange(NUM_IDS + 1), ONES),
    "apply": lambda table: table.apply(table.plan(IDS), ONES, per="id"),
    "group": lambda table: TableGroup.of_store(table.store).apply_gradients({"t": IDS}, {"t": ONES}),
    "plan of a group": lambda table: _apply_plan(TableGroup.of_store(table.store)),
}


def _apply_plan(group: TableGroup) -> object:
    plan = group.plan({"t": IDS})
    return group.apply(plan, np.ones(plan.num_values, np.float32))


@pytest.mark.parametrize("name", CALLS)
def test_without_a_step_ids_come_in_call_by_call(name: str) -> None:
    table = HashTable(CONFIG)
    for calls in range(1, 51):
        CALLS[name](table)
        if calls in {1, 10, 50}:
            assert len(table) / NUM_IDS == pytest.approx(1 - (1 - 1 / THRESHOLD) ** calls, abs=0.025), calls


def test_with_a_step_the_draw_is_that_of_the_step() -> None:
    table = HashTable(CONFIG)
    for _ in range(10):
        table.apply_gradients(IDS, ONES, step=0)
    admitted = len(table)
    first = HashTable(CONFIG)
    first.apply_gradients(IDS, ONES)
    assert sorted(first.ids().tolist()) == sorted(table.ids().tolist())  # the first offer is the draw of step 0
    assert admitted / NUM_IDS == pytest.approx(1 / THRESHOLD, abs=0.01)


def test_offers_are_those_of_the_id_whatever_else_is_offered() -> None:
    alone, beside = HashTable(CONFIG), HashTable(CONFIG)
    for _ in range(8):
        alone.assign(IDS[:100], ONES[:100])
        beside.assign(IDS[50:], ONES[50:])
        beside.assign(IDS[:50], ONES[:50])
    assert sorted(alone.ids().tolist()) == sorted(key for key in beside.ids().tolist() if key < 100)


_OFFERED = range(40)


def _blocks(store: Store) -> list[RowBlock]:
    schema = store.schema.tables[0]
    payload = bytes(4 * schema.dim + schema.state_bytes)
    by_bucket: dict[int, list[tuple[int, int, bytes]]] = {}
    for key in _OFFERED:
        by_bucket.setdefault(bucket_of_id(key), []).append((key, 0, payload))
    return [
        build_block(BlockKind.FULL, digest=schema.digest, table=0, bucket=bucket, epoch=0, rows=rows)
        for bucket, rows in by_bucket.items()
    ]


def _offer(store: Store, times: int) -> None:
    for _ in range(times):
        for block in _blocks(store):
            store.assign(block, add=False)


def _ids(store: Store) -> list[int]:
    with store.cut() as cut:
        blocks = list(cut.blocks(range(1024), state=True))
    return sorted(key for block in blocks if block.kind is BlockKind.FULL for key in block.keys.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("engines", [("three servers here", "local"), ("local", "three servers here")])
def test_a_restored_store_resumes_where_the_saved_one_stood(engines: tuple[str, str], tmp_path: Path) -> None:
    whole = LocalStore({"t": CONFIG})
    with stores_of(engines[0]) as make, stores_of(engines[1]) as make_other:
        saved, restored = make({"t": CONFIG}), make_other({"t": CONFIG})
        _offer(whole, 3)
        _offer(saved, 3)
        assert _ids(saved) == _ids(whole)
        with saved.cut() as cut:
            _offer(saved, 1)  # which the cut does not see
            snapshot.save_cut(cut, saved.schema, tmp_path / "snapshot", drop_expired=False, generation=0)
        snapshot.restore(restored, tmp_path / "snapshot")
        for store in (whole, restored):
            _offer(store, 3)
        assert _ids(restored) == _ids(whole)
        assert 0 < len(_ids(whole)) < len(_OFFERED)
