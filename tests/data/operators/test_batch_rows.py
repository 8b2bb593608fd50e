"""Cutting and joining batches by rows is what plain lists say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.operators.sample_rows import Row, batch_of, few, rows, rows_of
from monolith.data import Batch
from monolith.data.rows import concat_batches, keep_rows, take_rows, with_columns
from monolith.tensors import Ragged


@few
@given(rows(), st.data())
def test_rows_are_selected_in_the_requested_order(samples: list[Row], data: st.DataObject) -> None:
    batch = batch_of(samples)
    places = st.integers(0, max(len(samples) - 1, 0))
    numbers = data.draw(st.lists(places, max_size=0 if not samples else 6))
    taken = take_rows(batch, torch.tensor(numbers, dtype=torch.int64))
    everything = rows_of(batch)
    assert rows_of(taken) == [everything[number] for number in numbers]


@few
@given(rows(), st.data())
def test_rows_are_kept_where_the_mask_is_true(samples: list[Row], data: st.DataObject) -> None:
    batch = batch_of(samples)
    mask = data.draw(st.lists(st.booleans(), min_size=len(samples), max_size=len(samples)))
    expected = [row for row, keep in zip(rows_of(batch), mask, strict=True) if keep]
    kept = keep_rows(batch, torch.tensor(mask, dtype=torch.bool))
    assert rows_of(kept) == expected
    assert (kept is None) == (not expected)
    assert rows_of(take_rows(batch, torch.tensor(mask, dtype=torch.bool))) == expected


@few
@given(st.lists(rows(max_size=3), min_size=1, max_size=4))
def test_batches_are_joined_row_after_row(parts: list[list[Row]]) -> None:
    joined = concat_batches([batch_of(part) for part in parts])
    assert rows_of(joined) == [row for part in parts for row in rows_of(batch_of(part))]


def test_nested_rows_go_with_their_samples() -> None:
    batch = Batch({"lists": Ragged.from_lists([[[1, 2], []], [], [[3]]])}, num_rows=3)
    taken = take_rows(batch, torch.tensor([2, 0]))["lists"]
    assert isinstance(taken, Ragged)
    assert taken.to_lists() == [[[3]], [[1, 2], []]]
    joined = concat_batches([batch, batch])["lists"]
    assert isinstance(joined, Ragged)
    assert joined.to_lists() == [[[1, 2], []], [], [[3]]] * 2


def test_wrong_row_numbers_are_refused() -> None:
    batch = Batch({"uid": torch.arange(3)}, num_rows=3)
    with pytest.raises(ValueError, match=r"rows must be from 0 to 2, got -1 to 1"):
        take_rows(batch, torch.tensor([-1, 1]))
    with pytest.raises(ValueError, match=r"rows must be bool \[3\], got shape \[2\]"):
        take_rows(batch, torch.tensor([True, False]))
    with pytest.raises(TypeError, match="rows must be bool or int64 of one dim"):
        take_rows(batch, torch.tensor([0.5]))


def test_batches_that_differ_are_not_joined() -> None:
    one = Batch({"uid": torch.arange(2)}, num_rows=2)
    with pytest.raises(ValueError, match="differ in the columns label, uid"):
        concat_batches([one, Batch({"label": torch.ones(1)}, num_rows=1)])
    with pytest.raises(ValueError, match=r"'uid' of batch 1 and of batch 0 are list and Tensor"):
        concat_batches([one, Batch({"uid": [b"x"]}, num_rows=1)])
    with pytest.raises(ValueError, match=r"are torch.int64 \[1, 2\] and torch.int64 \[2\]"):
        concat_batches([one, Batch({"uid": torch.ones(1, 2, dtype=torch.int64)}, num_rows=1)])
    with pytest.raises(ValueError, match="at least one"):
        concat_batches([])


def test_columns_are_replaced_in_place_and_appended_at_the_end() -> None:
    batch = Batch({"uid": torch.arange(2), "label": torch.ones(2)}, num_rows=2)
    changed = with_columns(batch, {"new": torch.zeros(2), "uid": torch.tensor([7, 8])})
    assert list(changed) == ["uid", "label", "new"]
    assert batch["uid"] is not changed["uid"]
    with pytest.raises(ValueError, match="'new' must have 2 rows, got 3"):
        with_columns(batch, {"new": torch.zeros(3)})
