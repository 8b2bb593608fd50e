"""Reading on from a saved position, in a dataset that was built anew, is reading on without a break."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.pipelines import pipelines, plain, read_all
from monolith.data import Dataset, InMemoryDataset, MergedDataset, Reading
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.errors import FailedPreconditionError, InvalidArgumentError

ENOUGH = 60
"""Elements that are looked at; passes may be many."""


def some(reading: Reading[Any], count: int = ENOUGH) -> list[Any]:
    return [plain(element) for element in itertools.islice(reading, count)]


@settings(max_examples=200, deadline=None)
@given(pipelines(), st.integers(0, 40), st.integers(0, 5))
def test_a_break_anywhere_changes_nothing(
    pipeline: tuple[str, Callable[[], Dataset[Any]]], before: int, between: int
) -> None:
    _, build = pipeline
    with build().read() as reading:
        whole = some(reading)
    with build().read() as reading:
        head = some(reading, before)
        position = reading.position
    with build().read(position) as reading:
        assert reading.position == position
        middle = some(reading, between)
        position = reading.position
    with build().read(position) as reading:
        tail = some(reading, ENOUGH - len(head) - len(middle))
    assert head + middle + tail == whole


@settings(max_examples=60, deadline=None)
@given(pipelines(), st.integers(0, 40))
def test_what_waits_in_a_queue_is_neither_lost_nor_doubled(
    pipeline: tuple[str, Callable[[], Dataset[Any]]], before: int
) -> None:
    _, build = pipeline
    with build().read() as reading:
        whole = some(reading)
    with build().prefetch(4).read() as reading:
        head = some(reading, before)
        position = reading.position
    with build().read(position) as reading:  # prefetch has no position of its own: it may be left out now
        assert head + some(reading, ENOUGH - len(head)) == whole


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_the_end_stays_the_end(pipeline: tuple[str, Callable[[], Dataset[Any]]]) -> None:
    _, build = pipeline
    with build().read() as reading:
        if len(some(reading)) < ENOUGH:
            assert some(reading) == []
            position = reading.position
            assert read_all(build(), position) == []


def test_positions_are_small_however_deep_the_pipeline() -> None:
    dataset: Dataset[Any] = InMemoryDataset(range(100))
    for _ in range(10):
        dataset = dataset.shuffle(3).batch(1).map(lambda one: one[0])
    with dataset.read() as reading:
        next(reading)
        assert len(reading.position) < 2500
        assert json.loads(reading.position)["dataset"] == "batch"


@pytest.mark.parametrize(
    ("saved", "other", "text"),
    [
        (InMemoryDataset(range(9)).take(3), InMemoryDataset(range(9)).skip(3), "saved by a dataset of kind 'take'"),
        (InMemoryDataset(range(9)).shuffle(4, seed=1), InMemoryDataset(range(9)).shuffle(4, seed=2), "with seed 1"),
        (InMemoryDataset(range(9)).shuffle(4), InMemoryDataset(range(9)).shuffle(5), "with rows 4, this dataset has 5"),
        (
            MergedDataset([InMemoryDataset(range(9)), InMemoryDataset(range(9))], [1, 3]),
            MergedDataset([InMemoryDataset(range(9)), InMemoryDataset(range(9))], [3, 1]),
            "with ratios",
        ),
        (InMemoryDataset(range(9)).split([1, 1], seed=4)[0], InMemoryDataset(range(9)).split([1, 1])[0], "with seed 4"),
        (InMemoryDataset(range(9)), InMemoryDataset(range(1)), "after 2 elements, this dataset has 1"),
        (InMemoryDataset(range(9)).repeat(), InMemoryDataset(range(1)).repeat(), "after 2 elements"),
    ],
)
def test_a_position_of_another_dataset_is_refused_with_the_difference(
    saved: Dataset[int], other: Dataset[int], text: str
) -> None:
    with saved.read() as reading:
        next(reading), next(reading)
        position = reading.position
    with pytest.raises(InvalidArgumentError, match=text):
        other.read(position)


@pytest.mark.parametrize(
    "position", [b"", b"{", b"[]", b"3", b"null", b'{"dataset":"memory"}', b'{"dataset":"memory","index":-1}', b"\xff"]
)
def test_what_is_no_position_is_refused(position: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="position for a dataset of kind 'memory'"):
        InMemoryDataset([1]).read(position)


@given(st.binary(max_size=60))
def test_any_position_bytes_of_a_foreign_dataset_round_trip_unchanged(position: bytes) -> None:
    outer = encode_position("take", {"source": nested(position), "taken": 1})
    assert SavedPosition(outer, "take").position("source") == position


def test_a_failed_step_does_not_return_a_position_after_the_lost_element() -> None:
    def fails_at_two(number: int) -> int:
        if number == 2:
            raise ArithmeticError("two")
        return number

    with InMemoryDataset(range(5)).map(fails_at_two).read() as reading:
        assert [next(reading), next(reading)] == [0, 1]
        with pytest.raises(ArithmeticError):
            next(reading)
        with pytest.raises(FailedPreconditionError, match="fails_at_two failed on an element"):
            _ = reading.position
