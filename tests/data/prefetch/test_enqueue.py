"""Structures through a queue: what arrives is what was made, when it was made."""

from __future__ import annotations

import collections
import gc
import logging
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from monolith.data import MultiQueueRunner, enqueue_dicts_with_queue_return
from monolith.data.prefetch import ElementQueue, Taker, element, element_of, enqueue, prefetch
from monolith.dependence import RecordedCall, check_ops_dependence
from monolith.errors import InvalidArgumentError, OutOfRangeError
from monolith.tensors import NestedTensors, Ragged


class Pair(NamedTuple):
    left: Any
    right: Any


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(torch.tensor),
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2), max_size=3).map(Ragged.from_lists),
    st.builds(lambda: nn.Parameter(torch.ones(1))),
)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(collections.OrderedDict),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Ragged):
        return one.equal(other)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def queue_of(make: Any, capacity: int = 1) -> tuple[Taker, ElementQueue]:
    take, queue = enqueue_dicts_with_queue_return(make, capacity)
    assert isinstance(take, Taker)
    assert queue is not None
    return take, queue


@given(structures)
def test_any_structure_arrives_as_it_was_made(nested: Any) -> None:
    take, queue = queue_of(lambda: nested)
    queue.enqueue_op()
    assert same(take(), nested)
    # The list of tensors is the one that NestedTensors gives, whichever way the structure is carried.
    queue.enqueue_op()
    assert same(queue.dequeue(), NestedTensors(nested).get_tensors())


def test_only_uncommon_structures_are_flattened(monkeypatch: pytest.MonkeyPatch) -> None:
    flattened: list[Any] = []

    def flatten(nested: Any) -> NestedTensors:
        flattened.append(nested)
        return NestedTensors(nested)

    monkeypatch.setattr(element, "NestedTensors", flatten)
    element_of({"x": torch.ones(1), "ids": Ragged.from_lists([[1]]), "n": [1, (None, "a", b"b", True)]})
    assert flattened == []
    uncommon = [{"w": nn.Parameter(torch.ones(1))}, Pair(1, 2)]
    for each in uncommon:
        element_of(each)
    assert flattened == uncommon


@pytest.mark.parametrize(
    "leaf", [1.5, object(), {1, 2}, Ragged.from_lists([[[1]]]), {"deep": [1, (2, 3.0)]}, torch.zeros(1).numpy()]
)
def test_a_leaf_that_does_not_travel_is_refused_when_it_is_made(leaf: object) -> None:
    _, queue = queue_of(lambda: {"a": torch.ones(1), "b": leaf})
    with pytest.raises(ValueError, match=r"Tensor is not supported|doesn't support nested RaggedTensor"):
        queue.enqueue_op()
    assert queue.size() == 0


def test_the_maker_may_reuse_its_containers() -> None:
    reused: dict[str, Any] = {"inner": [0], "n": 0}

    def make() -> dict[str, Any]:
        reused["n"] += 1
        reused["inner"][0] = reused["n"]
        return reused

    take, queue = queue_of(make, capacity=3)
    for _ in range(3):
        queue.enqueue_op()
    assert [take() for _ in range(3)] == [{"inner": [n], "n": n} for n in (1, 2, 3)]


def test_one_object_in_two_places_stays_one() -> None:
    x, ids = torch.ones(1), Ragged.from_lists([[1]])
    take, queue = queue_of(lambda: [x, {"again": x}, ids, ids])
    queue.enqueue_op()
    taken = take()
    assert taken[0] is taken[1]["again"]
    assert taken[2] is taken[3]


def test_structures_may_change_from_call_to_call() -> None:
    made = iter([{"a": torch.ones(1)}, [torch.zeros(2), 1], None, "only text"])
    take, queue = queue_of(lambda: next(made), capacity=4)
    for _ in range(4):
        queue.enqueue_op()
    assert [type(take()) for _ in range(4)] == [dict, list, type(None), str]


@pytest.mark.parametrize("wrong", [{"x": torch.ones(1)}, iter([1]), None, torch.ones(1)])
def test_something_that_makes_nothing_is_refused(wrong: Any) -> None:
    for capacity in (0, 1):
        with pytest.raises(TypeError, match="expected a function that makes one structure of tensors, got"):
            enqueue_dicts_with_queue_return(wrong, capacity)


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1, got -1"):
        enqueue_dicts_with_queue_return(lambda: None, -1)


def test_taking_from_a_queue_depends_on_what_fills_it() -> None:
    source = RecordedCall(lambda: {"x": torch.ones(1)}, name="source")
    take, queue = queue_of(source)
    with pytest.raises(InvalidArgumentError, match=r"\[prefetch_queue_dequeue\] depend on ops \[source\]"):
        check_ops_dependence(take, source)
    check_ops_dependence(source, queue.enqueue_op)


def test_an_empty_queue_that_nothing_fills_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(enqueue, "_PATIENCE_SECONDS", 0.01)
    take, queue = queue_of(lambda: 7)
    with caplog.at_level(logging.WARNING):
        late = threading.Timer(0.3, queue.enqueue_op)
        late.start()
        assert take() == 7
        late.join()
    assert "'prefetch_queue' was empty for 0.01 s; if nothing fills it, attach EnqueueHook(queue)" in caplog.text


def numbers(count: int, error: BaseException | None = None) -> Iterator[dict[str, torch.Tensor]]:
    for number in range(count):
        yield {"x": torch.tensor(number)}
    if error is not None:
        raise error


@pytest.mark.parametrize("capacity", [0, 1, 2, 50])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_prefetch_gives_the_same_batches_in_the_same_order(capacity: int, count: int) -> None:
    assert [int(batch["x"]) for batch in prefetch(numbers(count), capacity)] == list(range(count))


@pytest.mark.parametrize("capacity", [0, 1, 4])
def test_prefetch_raises_an_error_in_its_place(capacity: int) -> None:
    batches = prefetch(numbers(5, KeyError("slot 7")), capacity, queue_name="clicks")
    assert [int(next(batches)["x"]) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="slot 7") as caught:
        next(batches)
    assert "numbers" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    if capacity:
        assert caught.value.__notes__ == ["raised in thread 'clicks/enqueue-0', which fills queue 'clicks'"]


def test_prefetch_left_early_ends_its_thread() -> None:
    closed = []

    def endless() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.append(True)

    for number in prefetch(endless(), 2):
        if number == 3:
            break
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch_queue")] == []
    assert closed == [True]


def test_prefetch_that_is_never_iterated_starts_nothing() -> None:
    before = threading.active_count()
    batches = prefetch(numbers(3))
    assert threading.active_count() == before
    del batches


def test_the_end_is_reported_again_and_again() -> None:
    take, queue = queue_of(iter([1, 2]).__next__)
    with MultiQueueRunner(queue.queues, [queue.enqueue_op]):
        assert list(take) == [1, 2]
        assert list(take) == []
        with pytest.raises(OutOfRangeError):
            take()


def test_memory_is_bounded_by_the_capacity_whatever_the_input() -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        nonlocal most
        for number in range(500):
            tensor = torch.full((1000,), number)
            alive.add(tensor)
            most = max(most, len(alive))
            yield {"x": tensor}
            del tensor

    for number, batch in enumerate(prefetch(batches(), 3)):
        assert int(batch["x"][0]) == number
        del batch
    assert most <= 3 + 2, "three wait, the thread holds one, and the step has one"
