"""Updates of several plans as one: the core against the rule spelled out in NumPy, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import torch

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables import Segment, TableConfig
from monolith.tables.initializers import Zeros
from monolith.tables.local.native_tables import NativeTables
from monolith.tables.local.plan import LocalPlan, merge_updates
from monolith.tables.row_optimizers import Sgd
from monolith.tables.slot_keys import buckets_of_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DIMS = {"a": 3, "b": 16, "c": 1}
VALUES = np.array([-0.0, 0.0, 1.5, -2.25, 3e38, 1e-40, np.nan, np.inf, -7.0], np.float32)
"""What goes wrong first: zeros with a sign, sums that overflow, what is not finite."""


def tables(dims: dict[str, int], wide_slots: Sequence[int] = ()) -> NativeTables:
    configs = {}
    for name, dim in dims.items():
        segment = Segment(dim, initializer=Zeros(), optimizer=Sgd())
        configs[name] = TableConfig([segment], wide_slots=tuple(wide_slots))
    return NativeTables(configs)


class Batch(NamedTuple):
    """The input of one plan."""

    ids: NDArray[np.int64]
    splits: NDArray[np.int64]
    buckets: NDArray[np.uint16] | None


def draw_batch(rng: np.random.Generator, num_tables: int, *, wide: bool) -> Batch:
    sizes = rng.choice([0, 1, 7, 1500], num_tables)
    splits = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ids = rng.integers(0, 2000, splits[-1])
    if not wide:
        return Batch(ids, splits, None)
    is_wide = rng.random(len(ids)) < 0.5
    ids = np.where(is_wide, ids + np.iinfo(np.int64).min, ids)
    told = _core.bucket_of(ids).astype(np.uint16)
    return Batch(ids, splits, np.where(is_wide, (ids & 7) * 100, told).astype(np.uint16))


def planned(native: NativeTables, batch: Batch) -> LocalPlan:
    core = native.core.plan(batch.ids, batch.splits, True, batch.buckets)
    return LocalPlan(native, core, batch.splits)


def end_to_end(batches: Sequence[Batch], arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Arrays of the inputs in the order of the merged input: table by table, then batch by batch."""
    num_tables = len(batches[0].splits) - 1
    parts = [
        array[batch.splits[table] : batch.splits[table + 1]]
        for table in range(num_tables)
        for batch, array in zip(batches, arrays, strict=True)
    ]
    return np.concatenate(parts)


def replanned(native: NativeTables, batches: Sequence[Batch]) -> _core.Plan:
    ids = end_to_end(batches, [batch.ids for batch in batches])
    sizes = sum(np.diff(batch.splits) for batch in batches)
    splits = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    if all(batch.buckets is None for batch in batches):
        return native.core.plan(ids, splits, True)
    told = [_core.bucket_of(batch.ids).astype(np.int64) for batch in batches]
    given = [
        known if batch.buckets is None else batch.buckets.astype(np.int64)
        for batch, known in zip(batches, told, strict=True)
    ]
    return native.core.plan(ids, splits, True, end_to_end(batches, given).astype(np.uint16))


def rows_by_key(
    native: NativeTables, plan: _core.Plan, flat: NDArray[np.float32]
) -> dict[tuple[int, int, int], NDArray[np.float32]]:
    """(bucket, table, id) -> its row, in plan order."""
    buckets = buckets_of_plan(plan.splits, len(native))
    sizes = np.diff(plan.splits)
    owners = np.repeat(np.tile(np.arange(len(native)), len(sizes) // len(native)), sizes)
    found, at = {}, 0
    for bucket, table, key in zip(buckets.tolist(), owners.tolist(), plan.unique_ids.tolist(), strict=True):
        dim = native.dims[table]
        found[bucket, table, key] = flat[at : at + dim]
        at += dim
    assert at == len(flat)
    return found


def combined(
    native: NativeTables,
    plan: _core.Plan,
    plans: Sequence[LocalPlan],
    values: Sequence[NDArray[np.float32]],
    *,
    add: bool,
) -> NDArray[np.float32]:
    """The rule: the first row of an id is copied, later ones are added or left out."""
    total: dict[tuple[int, int, int], NDArray[np.float32]] = {}
    for each, flat in zip(plans, values, strict=True):
        for key, row in rows_by_key(native, each.core, flat).items():
            if key not in total:
                total[key] = row.copy()
            elif add:
                with np.errstate(over="ignore", invalid="ignore"):
                    total[key] = total[key] + row
    expected = np.zeros(native.core.num_values(plan), np.float32)
    for key, row in rows_by_key(native, plan, expected).items():
        row[:] = total[key]
    return expected


def bits(values: NDArray[np.float32]) -> list[int]:
    """Equal bits are equal numbers, but for NaN, whose bits mean nothing."""
    found: list[int] = np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32).tolist()
    return found


def draw_values(rng: np.random.Generator, plan: LocalPlan) -> NDArray[np.float32]:
    return rng.choice(VALUES, plan.num_values).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_a_merged_update_matches_the_rule(seed: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    names = list(DIMS)[: 1 + seed % 3]
    wide = seed % 4 == 3
    native = tables({name: DIMS[name] for name in names}, [5] if wide else [])
    batches = [draw_batch(rng, len(names), wide=wide and at != 1) for at in range(2 + seed % 3)]
    plans = [planned(native, batch) for batch in batches]
    gradients, latest = ([draw_values(rng, plan) for plan in plans] for _ in range(2))
    times = [rng.integers(0, 1 << 32, len(batch.ids)) for batch in batches]
    before = _core.num_threads()
    _core.set_num_threads(threads)
    try:
        plan, gradient, merged_times, seen = merge_updates(native, plans, gradients, np.concatenate(times), latest)
    finally:
        _core.set_num_threads(before)
    expected = replanned(native, batches)
    for name in ("unique_ids", "splits", "inverse", "counts", "num_ids", "has_buckets", "deduplicated"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(expected, name), err_msg=name)
    assert bits(gradient) == bits(combined(native, expected, plans, gradients, add=True))
    assert seen is not None
    assert bits(seen) == bits(combined(native, expected, plans, latest, add=False))
    arranged = np.broadcast_to(merged_times, (expected.num_ids,))
    assert arranged.tolist() == end_to_end(batches, times).tolist()


def test_one_time_stays_one_and_one_plan_stays_as_it_is() -> None:
    native = tables({"a": 2})
    plans = [planned(native, Batch(np.array([1, 2]), np.array([0, 2]), None)) for _ in range(2)]
    ones = np.ones(4, np.float32)
    _, gradient, times, latest = merge_updates(native, plans, [ones, ones], np.array([7]), None)
    assert times.tolist() == [7]
    assert latest is None
    assert gradient.tolist() == [2.0] * 4
    plan, gradient, _, latest = merge_updates(native, plans[:1], [ones], np.array([7]), [ones])
    assert plan is plans[0].core
    assert gradient is ones
    assert latest is ones


def test_a_merged_plan_outlives_what_it_was_made_of() -> None:
    native = tables({"a": 2})
    merged = native.core.merge_plans(
        [
            native.core.plan(np.array([1, 2]), np.array([0, 2]), True),
            native.core.plan(np.array([3]), np.array([0, 1]), True),
        ]
    )
    plan, places = merged.plan, merged.places(1)
    del merged
    assert sorted(plan.unique_ids.tolist()) == [1, 2, 3]
    assert plan.unique_ids[places].tolist() == [3]


def test_plans_that_do_not_go_together_are_refused() -> None:
    one, two = tables({"a": 2}), tables({"a": 2, "b": 2})
    plan = one.core.plan(np.array([1, 1]), np.array([0, 2]), True)
    apart = one.core.plan(np.array([1, 1]), np.array([0, 2]), False)
    other = two.core.plan(np.array([1, 1]), np.array([0, 1, 2]), True)
    with pytest.raises(InvalidArgumentError, match="expected one plan or more"):
        one.core.merge_plans([])
    with pytest.raises(InvalidArgumentError, match="keeps repeated ids apart"):
        one.core.merge_plans([plan, apart])
    with pytest.raises(InvalidArgumentError, match="another number of tables"):
        one.core.merge_plans([other])
    with pytest.raises(InvalidArgumentError, match="plans of the same tables"):
        one.core.merge_plans([plan, other])
    merged = one.core.merge_plans([plan, plan])
    with pytest.raises(InvalidArgumentError, match="values of source 1 must have 2 elements, got 3"):
        merged.sum_rows([np.ones(2, np.float32), np.ones(3, np.float32)], np.empty(2, np.float32))
    with pytest.raises(TypeError):
        merged.sum_rows([np.ones(2)] * 2, np.empty(2, np.float32))  # type: ignore[list-item]


def owner_step(
    native: NativeTables, plans: Sequence[_core.Plan], owned: Sequence[tuple[int, int]], owner: int
) -> _core.MergedPlans:
    """What the owner of some buckets has of the plans of all ranks."""
    words, num_words = [], []
    for plan in plans:
        parts = native.core.plan_parts(plan, owned, True)
        ends = np.cumsum(parts.num_words)
        words.append(parts.words[ends[owner] - parts.num_words[owner] : ends[owner]])
        num_words.append(parts.num_words[owner])
    return native.core.merge_parts(np.concatenate(words), np.array(num_words), owned[owner])


def test_owners_add_what_the_ranks_send() -> None:
    rng = np.random.default_rng(5)
    native = tables(DIMS)
    batches = [draw_batch(rng, 3, wide=False) for _ in range(3)]
    plans = [planned(native, batch) for batch in batches]
    whole = native.core.merge_plans([plan.core for plan in plans])
    gradients = [rng.random(plan.num_values, np.float32) for plan in plans]
    expected = np.empty(native.core.num_values(whole.plan), np.float32)
    assert whole.sum_rows(gradients, expected, [0.5, 1.0, 0.25])
    owned = [(0, 0), (0, 400), (400, 1024)]
    num_values = [native.core.plan_parts(plan.core, owned, True).num_values for plan in plans]
    at, starts = 0, [0, 0, 0]
    for owner in range(3):
        merged = owner_step(native, [plan.core for plan in plans], owned, owner)
        count = native.core.num_values(merged.plan)
        sums = np.empty(count, np.float32)
        received = []
        for rank, gradient in enumerate(gradients):
            size = merged.num_values(rank)
            assert size == num_values[rank][owner]
            received.append(gradient[starts[rank] : starts[rank] + size])
            starts[rank] += size
        assert merged.sum_rows(received, sums, [0.5, 1.0, 0.25])
        assert sums.tolist() == expected[at : at + count].tolist()
        at += count
    assert at == len(expected)
    assert starts == [plan.num_values for plan in plans]


def test_rows_for_all_ranks_are_read_in_one_call() -> None:
    rng = np.random.default_rng(6)
    native = tables(DIMS)
    plans = [planned(native, draw_batch(rng, 3, wide=False)).core for _ in range(3)]
    merged = native.core.merge_plans(plans)
    gradient = rng.random(native.core.num_values(merged.plan), np.float32)
    rates = np.ones(3, np.float32)
    native.core.apply(merged.plan, gradient, 1, None, None, rates, 0, np.array([5]), 1.0, None)
    rows, sizes = [], [merged.num_values(rank) for rank in range(3)]
    for plan, size in zip(plans, sizes, strict=True):
        rows.append(np.empty(size, np.float32))
        native.core.read(plan, rows[-1], 0)
    values = np.empty(sum(sizes), np.float32)
    assert native.core.read_merged(merged, values, 0) == merged.plan.num_unique
    assert values.tolist() == np.concatenate(rows).tolist()
    with pytest.raises(InvalidArgumentError, match="values must have"):
        native.core.read_merged(merged, values[1:], 0)


def test_words_of_strangers_are_refused_by_the_rank_that_sent_them() -> None:
    native = tables({"a": 2})
    plan = native.core.plan(np.arange(50), np.array([0, 50]), True)
    parts = native.core.plan_parts(plan, [(0, 1024)], False)
    words = np.concatenate([parts.words, parts.words])
    num_words = np.repeat(parts.num_words, 2)
    assert native.core.merge_parts(words, num_words, (0, 1024)).plan.num_unique == 50
    words[len(parts.words) + 3] = words[len(parts.words) + 4]
    with pytest.raises(InvalidArgumentError, match=r"part 1: id \d+ came in bucket|part 1: id \d+ comes twice"):
        native.core.merge_parts(words, num_words, (0, 1024))
    with pytest.raises(InvalidArgumentError, match="part 0: cells must ascend inside"):
        native.core.merge_parts(parts.words, parts.num_words, (0, 3))
    with pytest.raises(InvalidArgumentError, match="no owner has those from 1000 on"):
        native.core.plan_parts(plan, [(0, 1000)], False)


def test_newest_times_are_of_the_distinct_ids() -> None:
    native = tables({"a": 2})
    plan = native.core.plan(np.array([4, 9, 4]), np.array([0, 3]), True)
    newest = dict(zip(plan.unique_ids.tolist(), plan.newest_times(np.array([5, 6, 7])).tolist(), strict=True))
    assert newest == {4: 7, 9: 6}
    assert plan.newest_times(np.array([3])).tolist() == [3]
    assert torch.from_numpy(plan.newest_times(np.array([3]))).dtype == torch.int64
