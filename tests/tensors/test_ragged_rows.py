"""Rows taken out of a `Ragged`, put side by side, put end to end, and moved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.tensors import Ragged

small_rows = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=7)
bounds = st.none() | st.integers(-9, 9)
NESTED = [[[1, 2], []], [], [[3]], [[], [4, 5, 6]]]


def padded(rows: list[list[int]], fill: int, length: int) -> list[list[int]]:
    return [(row + [fill] * length)[:length] for row in rows]


# taken out


def test_a_row_by_its_number(device: torch.device) -> None:
    ragged = Ragged.from_lists([[7, 3], [], [9]]).to(device)
    first, empty, last = ragged[0], ragged[-2], ragged[2]
    assert isinstance(first, torch.Tensor)
    assert (first.tolist(), first.device) == ([7, 3], device)
    assert isinstance(empty, torch.Tensor)
    assert (empty.tolist(), empty.dtype) == ([], torch.int64)
    assert isinstance(last, torch.Tensor)
    assert torch.equal(last, torch.tensor([9], device=device))


@pytest.mark.parametrize("row", [3, -4, 1 << 40])
def test_a_row_out_of_range_is_rejected(row: int) -> None:
    with pytest.raises(IndexError, match=f"row {row} of a Ragged of 3 rows"):
        Ragged.from_lists([[7, 3], [], [9]])[row]
    with pytest.raises(IndexError):
        Ragged.from_lists([])[0]


@pytest.mark.parametrize("wrong", ["0", 1.0, None, (0, 1)])
def test_a_row_by_something_else_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        Ragged.from_lists([[7]])[wrong]


@given(rows=small_rows, start=bounds, stop=bounds, step=st.none() | st.sampled_from([1, 2, 3, -1, -2]))
def test_slices_are_those_of_a_list(
    rows: list[list[int]], start: int | None, stop: int | None, step: int | None
) -> None:
    cut = slice(start, stop, step)
    sliced = Ragged.from_lists(rows)[cut]
    assert sliced.to_lists() == rows[cut]
    Ragged(sliced.values, sliced.row_splits)  # passes its own check


@given(start=bounds, stop=bounds, step=st.none() | st.sampled_from([1, 2, -1]))
def test_slices_of_rows_of_rows_are_those_of_a_list(start: int | None, stop: int | None, step: int | None) -> None:
    cut = slice(start, stop, step)
    assert Ragged.from_lists(NESTED)[cut].to_lists() == NESTED[cut]


@given(rows=small_rows.filter(len), data=st.data())
def test_rows_by_a_tensor_of_numbers(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=12))
    taken = Ragged.from_lists(rows)[torch.tensor(chosen, dtype=torch.int64)]
    assert taken.to_lists() == [rows[row] for row in chosen]
    Ragged(taken.values, taken.row_splits)


def test_rows_by_numbers_and_by_bools(device: torch.device) -> None:
    ragged = Ragged.from_lists([[7, 3], [], [9]]).to(device)
    assert ragged[torch.tensor([2, 2, 0], dtype=torch.int32, device=device)].to_lists() == [[9], [9], [7, 3]]
    assert ragged[torch.tensor([True, False, True], device=device)].to_lists() == [[7, 3], [9]]
    assert ragged[torch.tensor([], dtype=torch.int64, device=device)].to_lists() == []
    nested = Ragged.from_lists(NESTED).to(device)
    assert nested[torch.tensor([3, 0, 3], device=device)].to_lists() == [NESTED[3], NESTED[0], NESTED[3]]


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        ([3], IndexError, r"in -3\.\.2, got \[3\]"),
        ([0, -4], IndexError, r"in -3\.\.2, got \[0, -4\]"),
        ([-(1 << 63)], IndexError, r"in -3\.\.2"),
        ([True, False], IndexError, "a bool for each of 3 rows is needed to take rows, got 2"),
        ([[0]], ValueError, r"one dim, got shape \(1, 1\)"),
        ([0.0], TypeError, "must be int64, int32 or bool, got torch.float32"),
    ],
)
def test_invalid_row_indices_are_rejected(rows: list[Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Ragged.from_lists([[7, 3], [], [9]])[torch.tensor(rows)]


# side by side


@given(rows=small_rows, fill=st.integers(-99, 99), length=st.none() | st.integers(0, 6))
def test_padded_rows_are_filled_and_cut(rows: list[list[int]], fill: int, length: int | None) -> None:
    ragged = Ragged.from_lists(rows)
    expected_length = max(map(len, rows), default=0) if length is None else length
    result = ragged.to_padded(fill=fill, length=length)
    assert tuple(result.shape) == (len(rows), expected_length)
    assert result.tolist() == padded(rows, fill, expected_length)
    assert result.dtype == torch.int64
    mask = ragged.mask(length)
    assert mask.tolist() == [[place < len(row) for place in range(expected_length)] for row in rows]


def test_padded_rows_with_inner_dims(device: torch.device) -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=device)
    ragged = Ragged(values, torch.tensor([0, 0, 2, 3], device=device))
    result = ragged.to_padded(fill=-1.5)
    assert result.device == device
    assert result.tolist() == [
        [[-1.5, -1.5], [-1.5, -1.5]],
        [[1.0, 2.0], [3.0, 4.0]],
        [[5.0, 6.0], [-1.5, -1.5]],
    ]
    assert tuple(ragged.to_padded(length=0).shape) == (3, 0, 2)
    assert ragged.mask().device == device


def test_padded_rows_of_rows_are_filled_at_each_level() -> None:
    ragged = Ragged.from_lists(NESTED)
    assert ragged.to_padded(fill=9).tolist() == [
        [[1, 2, 9], [9, 9, 9]],
        [[9, 9, 9], [9, 9, 9]],
        [[3, 9, 9], [9, 9, 9]],
        [[9, 9, 9], [4, 5, 6]],
    ]
    assert ragged.to_padded(length=1).tolist() == [[[1, 2, 0]], [[0, 0, 0]], [[3, 0, 0]], [[0, 0, 0]]]


def test_gradient_reaches_what_is_shown_and_nothing_else() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64, requires_grad=True)
    ragged = Ragged(values, torch.tensor([0, 3, 3, 4]))
    weights = torch.tensor([[2.0, 3.0], [5.0, 7.0], [11.0, 13.0]], dtype=torch.float64)
    torch.autograd.backward((ragged.to_padded(fill=float("nan"), length=2).nan_to_num() * weights).sum())
    assert values.grad is not None
    assert values.grad.tolist() == [2.0, 3.0, 0.0, 11.0]


def test_gradients_of_moved_rows_agree_with_differences() -> None:
    splits = torch.tensor([0, 2, 2, 5])

    def moved(values: torch.Tensor) -> torch.Tensor:
        ragged = Ragged(values, splits)
        joined = Ragged.concat([ragged[torch.tensor([2, 0])], ragged[1:], ragged[::-1]])
        return joined.to_padded(length=2).sin()

    values = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2).requires_grad_()
    assert torch.autograd.gradcheck(moved, (values,))


def test_a_fill_that_the_values_cannot_hold_is_refused() -> None:
    ragged = Ragged.from_lists([[7], []])
    with pytest.raises(TypeError, match=r"fill must be an int for values of torch.int64, got 0\.5"):
        ragged.to_padded(fill=0.5)
    with pytest.raises(TypeError, match="got nan"):
        ragged.to_padded(fill=float("nan"))
    with pytest.raises(ValueError, match="length must be >= 0, got -1"):
        ragged.to_padded(length=-1)
    with pytest.raises(ValueError, match="length must be >= 0, got -1"):
        ragged.mask(-1)
    with pytest.raises(TypeError):
        ragged.to_padded(length=1.5)  # type: ignore[arg-type]


# end to end


@given(parts=st.lists(small_rows, min_size=1, max_size=4))
def test_concat_puts_rows_after_rows(parts: list[list[list[int]]]) -> None:
    joined = Ragged.concat([Ragged.from_lists(rows) for rows in parts])
    assert joined.to_lists() == [row for rows in parts for row in rows]
    Ragged(joined.values, joined.row_splits)


def test_concat_of_rows_of_rows(device: torch.device) -> None:
    parts = [Ragged.from_lists(NESTED).to(device), Ragged.from_lists([[[8]], []]).to(device)]
    joined = Ragged.concat(parts)
    assert joined.to_lists() == [*NESTED, [[8]], []]
    assert joined.device == device


def test_concat_of_unlike_or_no_raggeds_is_refused() -> None:
    ids = Ragged.from_lists([[1]])
    with pytest.raises(ValueError, match="at least one Ragged is needed"):
        Ragged.concat([])
    for other in (
        Ragged.from_lists([[1.0]], dtype=torch.float32),
        Ragged.from_lists([[[1]]]),
        Ragged(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0, 1])),
        Ragged(torch.zeros(1, dtype=torch.int64, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta")),
    ):
        with pytest.raises(ValueError, match="same ragged rank, inner dims, dtype and device"):
            Ragged.concat([ids, other])
    with pytest.raises(TypeError, match="concat: each must be a Ragged, got Tensor"):
        Ragged.concat([ids, torch.tensor([1])])  # type: ignore[list-item]


# moved


def test_moving_to_where_it_is_returns_itself() -> None:
    ragged = Ragged.from_lists([[1], []])
    assert ragged.to("cpu") is ragged
    assert ragged.to(torch.device("cpu"), non_blocking=True) is ragged


def test_moving_takes_values_and_splits_along(device: torch.device) -> None:
    for lists in ([[7, 3], [], [9]], NESTED):
        ragged = Ragged.from_lists(lists)
        ragged.value_rowids()
        moved = ragged.to(device)
        assert moved.device == moved.row_splits.device == moved.value_rowids().device == device
        assert moved.to("cpu").equal(ragged)
        assert moved.to(device) is moved


def test_moving_to_a_device_without_memory_keeps_shapes() -> None:
    moved = Ragged.from_lists([[7, 3], [], [9]]).to("meta")
    assert (moved.device.type, moved.num_rows, moved.flat_values.shape) == ("meta", 3, (3,))
    Ragged(moved.values, moved.row_splits)  # nothing to look at, nothing to refuse


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_rows_are_copied_without_waiting() -> None:
    ragged = Ragged.from_lists(NESTED).pin_memory()
    assert ragged.flat_values.is_pinned()
    assert ragged.row_splits.is_pinned()
    moved = ragged.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert moved.to_lists() == NESTED


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_parts_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"device of the values \(cuda:0\), got cpu"):
        Ragged(torch.tensor([1], device="cuda"), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"lengths must be on the device of the values \(cuda:0\), got cpu"):
        Ragged.from_lengths(torch.tensor([1], device="cuda"), torch.tensor([1]))
