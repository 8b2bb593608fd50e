"""What a `Ragged` is made of, what it refuses, and what it says of itself."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import monolith as ml
from monolith.tensors import Ragged, fused_value_rowids

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
numbers = st.integers(INT64_MIN, INT64_MAX) | st.sampled_from([INT64_MIN, -1, 0, INT64_MAX])
rows_of_numbers = st.lists(st.lists(numbers, max_size=5), max_size=8)
rows_of_rows = st.lists(st.lists(st.lists(numbers, max_size=3), max_size=3), max_size=5)


def splits_of(rows: list[list[Any]]) -> list[int]:
    return [0, *itertools.accumulate(len(row) for row in rows)]


# made of


@given(rows=rows_of_numbers)
def test_lists_become_values_and_splits_and_lists_again(rows: list[list[int]]) -> None:
    ragged = Ragged.from_lists(rows)
    assert isinstance(ragged.values, torch.Tensor)
    assert ragged.values.tolist() == list(itertools.chain.from_iterable(rows))
    assert ragged.row_splits.tolist() == splits_of(rows)
    assert (ragged.dtype, ragged.row_splits.dtype) == (torch.int64, torch.int64)
    assert ragged.to_lists() == rows
    assert ragged.num_rows == len(ragged) == len(rows)
    assert ragged.lengths().tolist() == [len(row) for row in rows]
    assert ragged.value_rowids().tolist() == [number for number, row in enumerate(rows) for _ in row]
    assert [row.tolist() for row in ragged if isinstance(row, torch.Tensor)] == rows


@given(rows=rows_of_rows)
def test_lists_of_lists_become_rows_of_rows(rows: list[list[list[int]]]) -> None:
    ragged = Ragged.from_lists([*rows, [[7]]])  # the last one says how deep the numbers stand
    assert isinstance(ragged.values, Ragged)
    assert (ragged.ndim, ragged.ragged_rank, ragged.num_rows) == (3, 2, len(rows) + 1)
    assert ragged.to_lists() == [*rows, [[7]]]
    assert ragged.row_splits.tolist() == splits_of([*rows, [[7]]])
    inner = [row for outer in rows for row in outer] + [[7]]
    assert ragged.values.to_lists() == inner
    assert ragged.flat_values.tolist() == list(itertools.chain.from_iterable(inner))
    assert ragged.value_rowids().tolist() == [number for number, row in enumerate([*rows, [[7]]]) for _ in row]
    assert ragged.lengths().tolist() == [*(len(row) for row in rows), 1]
    assert all(isinstance(row, Ragged) for row in ragged)


@given(rows=rows_of_numbers)
def test_splits_lengths_and_row_numbers_agree(rows: list[list[int]]) -> None:
    expected = Ragged.from_lists(rows)
    values = expected.flat_values
    lengths = [len(row) for row in rows]
    row_ids = [number for number, row in enumerate(rows) for _ in row]
    assert Ragged(values, torch.tensor(splits_of(rows))).equal(expected)
    assert Ragged.from_lengths(values, lengths).equal(expected)
    assert Ragged.from_lengths(values, torch.tensor(lengths, dtype=torch.int32)).equal(expected)
    assert Ragged.from_row_ids(values, row_ids, len(rows)).equal(expected)
    assert Ragged.from_row_ids(values, torch.tensor(row_ids, dtype=torch.int32), len(rows)).equal(expected)


def test_row_numbers_leave_room_for_empty_rows_at_both_ends() -> None:
    ragged = Ragged.from_row_ids(torch.tensor([5, 6, 7]), torch.tensor([1, 1, 3]), num_rows=6)
    assert ragged.to_lists() == [[], [5, 6], [], [7], [], []]
    assert ragged.value_rowids().tolist() == [1, 1, 3]


def test_rows_of_rows_of_rows_go_as_deep_as_the_lists() -> None:
    lists = [[[[1], []], []], [], [[[2, 3]]]]
    ragged = Ragged.from_lists(lists)
    assert (ragged.ndim, ragged.ragged_rank) == (4, 3)
    assert ragged.to_lists() == lists


def test_empty_rows_alone_are_rows_of_numbers() -> None:
    assert Ragged.from_lists([[], []]).ragged_rank == 1
    assert Ragged.from_lists([[[]], []]).to_lists() == [[[]], []]
    nothing = Ragged.from_lists([])
    assert (nothing.num_rows, nothing.to_lists(), nothing.row_splits.tolist()) == (0, [], [0])


def test_values_may_have_inner_dims_and_be_no_contiguous_block() -> None:
    values = torch.arange(12.0).reshape(2, 6).T  # [6, 2], strides 1 and 6
    splits = torch.tensor([0, 9, 4, 9, 4, 9, 6, 9])[::2]
    assert not values.is_contiguous()
    assert not splits.is_contiguous()
    ragged = Ragged(values, splits)
    assert ragged.ndim == 3
    assert ragged.to_lists() == [values[:4].tolist(), [], values[4:].tolist()]
    assert ragged.lengths().tolist() == [4, 0, 2]


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        (torch.float32, [[0.5, float("-inf")], [], [2]]),
        (torch.float64, [[0.1], [1e300]]),
        (torch.bfloat16, [[1.0], [-2.0]]),
        (torch.int32, [[-(1 << 31)], [(1 << 31) - 1]]),
        (torch.uint8, [[0, 255]]),
        (torch.bool, [[True], [False, True]]),
        (torch.complex64, [[1j], [2.0]]),
    ],
)
def test_lists_of_any_type_of_number(dtype: torch.dtype, rows: list[list[Any]]) -> None:
    ragged = Ragged.from_lists(rows, dtype=dtype)
    assert ragged.dtype == dtype
    assert ragged.to_lists() == rows


def test_numpy_numbers_and_tuples_are_fine_in_lists() -> None:
    assert Ragged.from_lists(((np.int64(3), np.uint8(4)), (True,))).to_lists() == [[3, 4], [1]]


def test_the_front_door_has_it() -> None:
    assert ml.Ragged is Ragged is ml.tensors.Ragged


# row numbers, computed once


def test_row_numbers_are_computed_once() -> None:
    ragged = Ragged.from_lists([[], [1], [2, 3]])
    first = fused_value_rowids(ragged)
    assert fused_value_rowids(ragged) is first
    assert ragged.value_rowids() is first
    assert first.tolist() == [1, 2, 2]


@pytest.mark.parametrize("wrong", [None, [[1], [2, 3]], torch.tensor([1]), "rows"])
def test_row_numbers_of_something_else_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^rt must be RaggedTensor$"):
        fused_value_rowids(wrong)


def test_row_numbers_made_in_inference_mode_serve_training() -> None:
    ragged = Ragged.from_lists([[7, 8], [], [9]])
    with torch.inference_mode():
        row_ids = ragged.value_rowids()
    weights = torch.ones(3, 2, requires_grad=True)
    torch.autograd.backward(weights.index_select(0, row_ids).sum())  # saves the row numbers for the gradient
    assert weights.grad is not None
    assert weights.grad.tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]
    assert ragged.value_rowids() is row_ids


def test_row_numbers_requested_by_many_threads_are_right() -> None:
    ragged = Ragged.from_lengths(torch.arange(10_000), torch.arange(10_000) % 2 * 2)
    barrier, found = threading.Barrier(4), []

    def ask() -> None:
        barrier.wait()
        found.append(ragged.value_rowids())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = torch.arange(1, 10_000, 2).repeat_interleave(2)
    assert [torch.equal(each, expected) for each in found] == [True] * 4


def test_other_values_in_the_same_rows_share_the_row_numbers() -> None:
    ids = Ragged.from_lists([[7, 3], [], [9]])
    row_ids = ids.value_rowids()
    rows = ids.with_values(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert rows.value_rowids() is row_ids
    assert rows.row_splits is ids.row_splits
    assert rows.to_lists() == [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]]
    assert ids.with_values(Ragged.from_lists([[1], [], [2]])).to_lists() == [[[1], []], [], [[2]]]


# refused


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        ([1, 3], r"rise from 0 to the number of values \(3\), got 1 to 3$"),
        ([0, 2], r"got 0 to 2$"),
        ([0, 4], r"got 0 to 4$"),
        ([0, 2, 1, 3], r"got 0 to 3, decreasing in between"),
        ([0, INT64_MAX, INT64_MIN, 3], r"decreasing in between"),
        ([-1, 3], r"got -1 to 3"),
        ([0], r"got 0 to 0$"),
        ([], r"shape \(rows \+ 1,\), got \(0,\)"),
        ([[0, 3]], r"shape \(rows \+ 1,\), got \(1, 2\)"),
    ],
)
def test_splits_that_do_not_cut_the_values_are_refused(splits: list[Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Ragged(torch.tensor([7, 8, 9]), torch.tensor(splits, dtype=torch.int64))


@pytest.mark.parametrize(
    ("values", "splits", "error", "text"),
    [
        (
            [7, 8],
            torch.tensor([0, 2]),
            TypeError,
            "values must be a tensor or a Ragged, got list; see Ragged.from_lists",
        ),
        (torch.tensor(7), torch.tensor([0, 1]), ValueError, "at least one dim, got a scalar"),
        (torch.tensor([7]), [0, 1], TypeError, "row_splits must be an int64 tensor, got list"),
        (
            torch.tensor([7]),
            torch.tensor([0, 1], dtype=torch.int32),
            TypeError,
            "must be int64, got torch.int32; convert",
        ),
        (torch.tensor([7]), torch.tensor([0.0, 1.0]), TypeError, "must be int64, got torch.float32"),
        (torch.tensor([7]), torch.tensor([0, 1], device="meta"), ValueError, "device of the values (cpu), got meta"),
    ],
)
def test_parts_of_the_wrong_kind_are_refused(values: Any, splits: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        Ragged(values, splits)
    assert text in str(caught.value)


def test_splits_of_rows_of_rows_count_rows() -> None:
    inner = Ragged.from_lists([[1, 2, 3], [4]])
    assert Ragged(inner, torch.tensor([0, 2])).to_lists() == [[[1, 2, 3], [4]]]
    with pytest.raises(ValueError, match=r"number of values \(2\), got 0 to 4"):
        Ragged(inner, torch.tensor([0, 4]))


def test_without_validation_nothing_is_checked() -> None:
    ragged = Ragged(torch.tensor([7]), torch.tensor([5, 3]), validate=False)
    assert ragged.row_splits.tolist() == [5, 3]


@pytest.mark.parametrize(
    ("lengths", "error", "text"),
    [
        ([1, 1], ValueError, r"add up to the number of values \(3\), got 2$"),
        ([2, 2], ValueError, r"got 4$"),
        ([3, 1, -1], ValueError, r"got a length of -1$"),
        ([INT64_MAX, INT64_MAX, 5], ValueError, r"number of values \(3\), got 18446744073709551619"),  # wraps to 3
        ([[3]], ValueError, r"lengths must have one dim, got shape \(1, 1\)"),
        ([1.0, 2.0], TypeError, r"lengths must be int64 or int32, got torch.float32"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: list[Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Ragged.from_lengths(torch.tensor([7, 8, 9]), torch.tensor(lengths))


def test_a_fractional_length_is_refused_in_a_list_too() -> None:
    with pytest.raises(TypeError):
        Ragged.from_lengths(torch.tensor([7, 8]), [1.5, 0.5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("row_ids", "num_rows", "text"),
    [
        ([0, 0], 2, "one number for each of 3 values, got 2"),
        ([0, 2, 1], 3, "never decrease; sort them first"),
        ([0, 1, 2], 2, r"in 0\.\.1, got 0 to 2"),
        ([-1, 0, 0], 2, r"in 0\.\.1, got -1 to 0"),
        ([0, 0, 0], -1, "num_rows must be >= 0, got -1"),
        ([0, 0, 0], 0, r"in 0\.\.-1, got 0 to 0"),
    ],
)
def test_row_numbers_that_do_not_fit_are_refused(row_ids: list[int], num_rows: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Ragged.from_row_ids(torch.tensor([7, 8, 9]), torch.tensor(row_ids), num_rows)


@pytest.mark.parametrize(
    ("lists", "dtype", "error", "text"),
    [
        ([[1], 2], torch.int64, TypeError, "lists must hold lists or tuples only, got int at 1"),
        ([[[1], 2]], torch.int64, TypeError, "lists of level 2 must hold lists or tuples only, got int at 1"),
        ([torch.tensor([1])], torch.int64, TypeError, "got Tensor at 0; for tensors, see Ragged.from_lengths"),
        (["ab"], torch.int64, TypeError, "got str at 0"),
        ([[1.5]], torch.int64, TypeError, "numbers of torch.int64: 'float' object"),
        ([["7"]], torch.int64, TypeError, "numbers of torch.int64: 'str' object"),
        ([["7"]], torch.float32, TypeError, "numbers of torch.float32"),
        ([[None]], torch.int64, TypeError, "numbers of torch.int64: 'NoneType' object"),
        ([[1 << 63]], torch.int64, ValueError, "numbers of torch.int64"),
        ([[300]], torch.uint8, ValueError, "numbers of torch.uint8, got 300 to 300"),
        ([[1, -(1 << 31) - 1]], torch.int32, ValueError, "numbers of torch.int32, got -2147483649 to 1"),
        ([[2]], torch.bool, TypeError, "numbers of torch.bool: got 2"),
    ],
)
def test_lists_of_something_else_are_refused(
    lists: list[Any], dtype: torch.dtype, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        Ragged.from_lists(lists, dtype=dtype)
    assert text in str(caught.value)


def test_other_values_of_another_number_or_place_are_refused() -> None:
    ragged = Ragged.from_lists([[1], [2, 3]])
    with pytest.raises(ValueError, match="expected 3 values on cpu, got 2 on cpu"):
        ragged.with_values(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="expected 3 values on cpu, got 3 on meta"):
        ragged.with_values(torch.zeros(3, device="meta"))
    with pytest.raises(ValueError, match="got a scalar"):
        ragged.with_values(torch.tensor(1))
    with pytest.raises(TypeError, match="got list"):
        ragged.with_values([1, 2, 3])  # type: ignore[arg-type]


def test_it_cannot_be_changed_by_assignment() -> None:
    ragged = Ragged.from_lists([[1]])
    with pytest.raises(AttributeError):
        ragged.values = torch.zeros(1)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ragged.extra = 1  # type: ignore[attr-defined]


# what it says of itself


def test_repr_shows_small_ones_and_counts_large_ones() -> None:
    assert repr(Ragged.from_lists([[7, 3], [], [9]])) == "Ragged([[7, 3], [], [9]], dtype=torch.int64)"
    floats = Ragged.from_lists([[0.1, float("nan")], [1234.56789]], dtype=torch.float32)
    assert repr(floats) == "Ragged([[0.1, nan], [1235.0]], dtype=torch.float32)"
    assert repr(Ragged.from_lists([[[1], []], []])) == "Ragged([[[1], []], []], dtype=torch.int64)"
    wide = Ragged(torch.zeros(3, 64), torch.tensor([0, 1, 3]))
    assert repr(wide) == "Ragged(2 rows, 3 values, dtype=torch.float32)"
    meta = Ragged(torch.zeros(3, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta"))
    assert repr(meta) == "Ragged(1 rows, 3 values, dtype=torch.float32, device='meta')"


def test_repr_of_numbers_that_do_not_exist_yet_counts_them() -> None:
    with FakeTensorMode():
        fake = Ragged(torch.zeros(3), torch.zeros(2, dtype=torch.int64), validate=False)
        assert repr(fake) == "Ragged(1 rows, 3 values, dtype=torch.float32)"


def test_equal_compares_rows_nesting_and_dtype() -> None:
    one = Ragged.from_lists([[1], [2, 3]])
    assert one.equal(Ragged.from_lists([[1], [2, 3]]))
    assert not one.equal(Ragged.from_lists([[1, 2], [3]]))
    assert not one.equal(Ragged.from_lists([[1], [2, 4]]))
    assert not one.equal(Ragged.from_lists([[1], [2, 3], []]))
    assert not one.equal(Ragged.from_lists([[1], [2, 3]], dtype=torch.int32))
    assert not one.equal(Ragged.from_lists([[[1]], [[2], [3]]]))  # the same splits, cut from rows
    assert not Ragged.from_lists([[[1]], [[2], [3]]]).equal(one)
    assert not Ragged.from_lists([[[1]], [[2, 3]]]).equal(Ragged.from_lists([[[1]], [[2], [3]]]))
    assert not one.equal(Ragged(torch.tensor([[1], [2], [3]]), torch.tensor([0, 1, 3])))
    nan = Ragged.from_lists([[float("nan")]], dtype=torch.float32)
    assert not nan.equal(nan)
    with pytest.raises(TypeError, match="other must be a Ragged, got list"):
        one.equal([[1], [2, 3]])  # type: ignore[arg-type]
