from __future__ import annotations

import gc
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.tables.touched_key_set import (
    TOUCHED_KEY_SET_CAPACITY,
    TOUCHED_KEY_SET_CONCURRENCY_LEVEL,
    TouchedKeySet,
    create_touched_key_set,
)

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def stolen(keys: TouchedKeySet) -> list[int]:
    return sorted(keys.steal().tolist())


class ReferenceSet:
    """The rule in its plainest form: look, clear, add."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ids: set[int] = set()

    def insert(self, ids: list[int]) -> int:
        dropped = 0
        for each in ids:
            if len(self.ids) > self.capacity:
                dropped += len(self.ids)
                self.ids.clear()
            self.ids.add(each)
        return dropped


def test_the_constants_are_those_of_64_mebibytes_and_1024_locks() -> None:
    assert TOUCHED_KEY_SET_CAPACITY == 2_097_152
    assert TOUCHED_KEY_SET_CONCURRENCY_LEVEL == 1024
    keys = TouchedKeySet()
    assert (keys.capacity, keys.concurrency_level) == (2_097_152, 1024)
    assert "size=0" in repr(keys)


def test_steal_returns_exactly_what_was_inserted() -> None:
    keys = TouchedKeySet(1000, 1)
    assert keys.insert(torch.arange(1000)) == 0
    assert keys.size() == 1000
    taken = keys.steal()
    assert taken.dtype == torch.int64
    assert taken.shape == (1000,)
    assert sorted(taken.tolist()) == list(range(1000))
    assert keys.size() == 0
    assert keys.steal().shape == (0,)


@pytest.mark.parametrize("concurrency_level", [1, 3, 1024])
def test_overflow_drops_everything_once_and_continues(concurrency_level: int) -> None:
    keys = TouchedKeySet(1000, concurrency_level)
    assert keys.insert(torch.arange(1005)) == 1001
    assert stolen(keys) == [1001, 1002, 1003, 1004]


def test_overflow_is_exact_when_ids_come_one_by_one() -> None:
    keys = TouchedKeySet(1000, 4)
    drops = [keys.insert(each) for each in range(1005)]
    assert drops == [0] * 1001 + [1001] + [0] * 3
    assert stolen(keys) == [1001, 1002, 1003, 1004]


def test_duplicates_cost_nothing() -> None:
    keys = TouchedKeySet(3, 2)
    for _ in range(10):
        assert keys.insert([1, 1, 2, 3, 3]) == 0
    assert keys.size() == 3


@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 3, 2), (12, 1)])
def test_ids_may_have_any_shape_and_kind(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(12).reshape(shape)
    for ids in (tensor, tensor.numpy(), tensor.tolist(), tensor.flip(0), tensor.T if tensor.ndim == 2 else tensor):
        keys = TouchedKeySet(100, 1)
        assert keys.insert(ids) == 0
        assert stolen(keys) == list(range(12))


def test_empty_batches_and_single_ids() -> None:
    keys = TouchedKeySet(10, 1)
    nothing: list[Any] = [[], torch.empty(0, dtype=torch.int64), np.empty((0, 3), np.int64)]
    assert [keys.insert(each) for each in nothing] == [0, 0, 0]
    assert keys.size() == 0
    assert keys.insert(torch.tensor(7)) == 0
    assert stolen(keys) == [7]


def test_every_int64_is_an_ordinary_id() -> None:
    extremes = [INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX]
    keys = TouchedKeySet(100, 8)
    keys.insert(extremes)
    keys.insert(torch.tensor(extremes))
    assert stolen(keys) == extremes


batches = st.lists(st.integers(-6, 6) | st.sampled_from([INT64_MIN, INT64_MAX]), max_size=12)


@given(capacity=st.integers(1, 8), level=st.integers(1, 5), operations=st.lists(batches | st.none(), max_size=20))
def test_any_sequence_of_calls_agrees_with_the_reference(
    capacity: int, level: int, operations: list[list[int] | None]
) -> None:
    keys, reference = TouchedKeySet(capacity, level), ReferenceSet(capacity)
    for batch in operations:
        if batch is None:
            assert stolen(keys) == sorted(reference.ids)
            reference.ids.clear()
        else:
            assert keys.insert(batch) == reference.insert(batch)
        assert keys.size() == len(reference.ids)


def test_memory_is_taken_by_the_first_insert_and_given_back_by_steal() -> None:
    handle = create_touched_key_set(1 << 21, 1024)
    assert handle.allocated_bytes() == 0
    handle.insert(np.arange(100_000))
    assert 0 < handle.allocated_bytes() < 100_000 * 40
    handle.steal()
    assert handle.allocated_bytes() == 0


def test_an_equal_suffix_shares_one_set_and_the_empty_one_never_does() -> None:
    first, second = TouchedKeySet(10, 1, "shared"), TouchedKeySet(10, 1, name_suffix="shared")
    other, alone, alone_too = TouchedKeySet(10, 1, "other"), TouchedKeySet(10, 1), TouchedKeySet(10, 1, "")
    first.insert([1, 2])
    assert stolen(second) == [1, 2]
    alone.insert([3])
    assert [each.size() for each in (first, second, other, alone, alone_too)] == [0, 0, 0, 1, 0]
    assert create_touched_key_set(10, 1, "shared") is create_touched_key_set(10, 1, "shared")


def test_a_living_suffix_with_other_numbers_is_refused() -> None:
    keys = TouchedKeySet(10, 1, "taken")
    keys.insert([5])
    for capacity, level in ((11, 1), (10, 2)):
        with pytest.raises(
            ValueError, match=r"touched key set 'taken': exists with capacity 10 .* use those or another"
        ):
            TouchedKeySet(capacity, level, "taken")
    assert stolen(keys) == [5]


@pytest.mark.slow
def test_a_suffix_is_free_again_once_the_set_is_released() -> None:
    keys = TouchedKeySet(10, 1, "passing")
    keys.insert([5])
    del keys
    gc.collect()
    assert TouchedKeySet(20, 2, "passing").size() == 0


@pytest.mark.parametrize("bad", [0, -1, INT64_MIN, 1 << 63, 1 << 70])
@pytest.mark.parametrize("name", ["capacity", "concurrency_level"])
def test_numbers_out_of_range_are_refused(name: str, bad: int) -> None:
    numbers: dict[str, Any] = {"capacity": 5, "concurrency_level": 5, name: bad}
    with pytest.raises(ValueError, match=rf"touched key set: {name} must be .*, got {bad}"):
        TouchedKeySet(**numbers)


def test_more_locks_than_65536_are_refused() -> None:
    with pytest.raises(ValueError, match=r"concurrency_level must be in 1\.\.65536, got 65537"):
        TouchedKeySet(5, 65537)


@pytest.mark.parametrize("bad", [1.0, math.nan, math.inf, "7", None, True, [1]])
@pytest.mark.parametrize("name", ["capacity", "concurrency_level"])
def test_numbers_of_another_type_are_refused(name: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=rf"touched key set: {name} must be an int, got {type(bad).__name__}"):
        TouchedKeySet(**{"capacity": 5, "concurrency_level": 5, name: bad})


def test_a_suffix_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match="name_suffix must be a string, got int 3"):
        TouchedKeySet(5, 5, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        torch.tensor([1.0]),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([True]),
        np.array([1.5]),
        np.array([1], np.uint64),
        [1.5],
        [math.nan],
        [1, None],
        ["7"],
        None,
        [1 << 63],
    ],
)
def test_ids_of_another_type_are_refused_and_nothing_changes(bad: Any) -> None:
    keys = TouchedKeySet(2, 1)
    keys.insert([5, 6, 7])
    with pytest.raises((TypeError, ValueError), match="touched key set: ids must be"):
        keys.insert(bad)
    assert stolen(keys) == [5, 6, 7]


def test_many_threads_lose_and_invent_nothing() -> None:
    workers, per_worker = 4, 20_000
    keys = TouchedKeySet(5000, 16)
    taken: list[int] = []
    done = threading.Event()

    def write(worker: int) -> int:
        ids = np.arange(worker * per_worker, (worker + 1) * per_worker)
        return sum(keys.insert(batch) for batch in ids.reshape(-1, 500))

    def take() -> None:
        while not done.is_set():
            taken.extend(keys.steal().tolist())

    with ThreadPoolExecutor(workers + 1) as pool:
        taking = pool.submit(take)
        dropped = sum(pool.map(write, range(workers)))
        done.set()
        taking.result(timeout=30)
    taken.extend(keys.steal().tolist())
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(range(workers * per_worker))
    assert len(taken) + dropped == workers * per_worker
