"""Rows that come again are left out, and batches joined, with positions that lose and repeat nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.pipelines import batches, plain, read_all, records
from monolith.data import Batch, Dataset, InMemoryDataset
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

KEYS = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, -1, 1 << 62, -(1 << 63)]), max_size=6), max_size=6)


def keyed(keys: list[list[int]]) -> Dataset[Batch]:
    """Batches of rows with these keys, numbered."""
    number = 0
    made = []
    for part in keys:
        rows = torch.arange(number, number + len(part))
        made.append(Batch({"key": torch.tensor(part, dtype=torch.int64), "row": rows}, num_rows=len(part)))
        number += len(part)
    return InMemoryDataset(made)


def expected_rows(keys: list[list[int]], window: int) -> list[list[int]]:
    flat = [key for part in keys for key in part]
    kept = [row for row, key in enumerate(flat) if key not in flat[max(0, row - window) : row]]
    parts, number = [], 0
    for part in keys:
        own = [row for row in range(number, number + len(part)) if row in kept]
        number += len(part)
        if own:
            parts.append(own)
    return parts


@settings(max_examples=60)
@given(KEYS, st.integers(1, 12))
def test_rows_within_the_window_are_dropped(keys: list[list[int]], window: int) -> None:
    made = read_all(keyed(keys).deduplicate("key", window=window))
    assert [batch["row"] for batch in made] == expected_rows(keys, window)


@settings(max_examples=40)
@given(KEYS, st.integers(1, 9))
def test_reading_resumes_from_every_position_as_if_it_had_not_stopped(keys: list[list[int]], window: int) -> None:
    dataset = keyed(keys).deduplicate("key", window=window)
    whole = read_all(dataset)
    with dataset.read() as reading:
        positions = [reading.position, *(reading.position for _ in reading)]
    for number, position in enumerate(positions):
        assert read_all(dataset, position) == whole[number:]
        with dataset.read(position) as again:
            assert again.position == position
            for _ in again:
                break
        # A position of a reading that was itself restored is as good.
        if number + 1 < len(positions):
            assert read_all(dataset, again.position) == whole[number + 1 :]


def test_keys_are_evicted_in_time() -> None:
    dataset = keyed([[number] for number in range(600)]).deduplicate("key", window=10)
    with dataset.read() as reading:
        for _ in reading:
            pass
        assert len(reading._seen._keys) <= 21  # type: ignore[attr-defined]
        assert len(reading._starts) <= 12  # type: ignore[attr-defined]
        assert len(reading.position) < 400


def test_rows_are_equal_only_in_all_columns() -> None:
    batch = Batch(
        {
            "user": Ragged.from_lists([[1, 2], [2, 1], [1, 2], [1, 2]]),
            "city": [b"Rome", b"Rome", b"Oslo", b"Rome"],
            "row": torch.arange(4),
        },
        num_rows=4,
    )
    made = read_all(InMemoryDataset([batch]).deduplicate(["user", "city"], window=100))
    assert [each["row"] for each in made] == [[0, 1, 2]]


def test_what_is_wrong_is_named() -> None:
    dataset = keyed([[1], [2]])
    with pytest.raises(ValueError, match="at least one column"):
        dataset.deduplicate([], window=1)
    with pytest.raises(ValueError, match="window"):
        dataset.deduplicate("key", window=0)
    with pytest.raises(ValueError, match="deduplicate: batch has no column 'id'; it has key, row"):
        read_all(dataset.deduplicate("id", window=1))
    elements: Any = InMemoryDataset([1, 2])
    with pytest.raises(TypeError, match="deduplicate: expected batches, got a int"):
        read_all(elements.deduplicate("id", window=1))
    with pytest.raises(TypeError, match="merged_window: expected batches or records, got a int"):
        read_all(elements.merged_window(2))
    with dataset.deduplicate("key", window=5).read() as reading:
        position = reading.position
    with pytest.raises(InvalidArgumentError, match="it was saved with window 5, this dataset has 6"):
        dataset.deduplicate("key", window=6).read(position)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 4), st.booleans())
def test_windows_join_their_batches_and_can_be_resumed_from(sizes: list[int], size: int, of_records: bool) -> None:
    source: Dataset[Any] = records(sizes) if of_records else batches(sizes)
    dataset = source.merged_window(size)
    with dataset.read() as reading:
        positions, made = [reading.position], []
        for element in reading:
            made.append(plain(element))
            positions.append(reading.position)
    assert len(made) == -(-len(sizes) // size)
    flat = read_all(source.batch(1000))
    assert read_all(InMemoryDataset([]) if not made else dataset.batch(1000)) == flat
    for number, position in enumerate(positions):
        assert read_all(dataset, position) == made[number:]
