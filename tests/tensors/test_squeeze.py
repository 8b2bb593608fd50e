"""Rows wrapped once more, brought back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monolith.tensors import Ragged, maybe_squeeze_3d_tensor

ROWS = [[0, 1], [2]]


def test_rows_of_numbers_are_returned_as_they_are() -> None:
    rows = Ragged.from_lists(ROWS)
    assert maybe_squeeze_3d_tensor(rows) is rows


def test_rows_of_one_row_lose_the_middle_dim(device: torch.device) -> None:
    rows = Ragged.from_lists(ROWS).to(device)
    wrapped = Ragged.from_lengths(rows, [1, 1])
    assert wrapped.ndim == 3
    squeezed = maybe_squeeze_3d_tensor(wrapped)
    assert squeezed.ndim == 2
    assert squeezed.device == device
    assert squeezed.to_lists() == ROWS
    assert maybe_squeeze_3d_tensor(Ragged.from_lists([[[]], [[5]], [[]]])).to_lists() == [[], [5], []]


def test_rows_of_one_uniform_row_become_ragged_rows(device: torch.device) -> None:
    values = torch.arange(6, device=device).reshape(2, 3)
    squeezed = maybe_squeeze_3d_tensor(Ragged.from_lengths(values, [1, 1]))
    assert squeezed.to_lists() == [[0, 1, 2], [3, 4, 5]]
    Ragged(squeezed.values, squeezed.row_splits)


def test_no_rows_at_all_are_squeezed_to_no_rows() -> None:
    nothing = Ragged(Ragged.from_lists([]), torch.tensor([0]))
    assert maybe_squeeze_3d_tensor(nothing).to_lists() == []
    assert maybe_squeeze_3d_tensor(Ragged(torch.zeros(0, 4), torch.tensor([0]))).to_lists() == []


@pytest.mark.parametrize(
    ("lists", "text"),
    [([[[1]], [[2], [3]]], "got 2 in row 1"), ([[], [[1]]], "got 0 in row 0"), ([[[1]], [], []], "got 0 in row 1")],
)
def test_rows_of_more_or_fewer_rows_are_refused(lists: list[Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        maybe_squeeze_3d_tensor(Ragged.from_lists(lists))


@pytest.mark.parametrize("wrong", [torch.zeros(2, 1, 3), [[1]], None])
def test_something_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^input must be RaggedTensor"):
        maybe_squeeze_3d_tensor(wrong)


def test_another_number_of_dims_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Unknown shape of RaggedTensor. Expected 2 or 3 dims, got 4"):
        maybe_squeeze_3d_tensor(Ragged.from_lists([[[[1]]]]))
    with pytest.raises(ValueError, match="got 4"):
        maybe_squeeze_3d_tensor(Ragged(torch.zeros(1, 1, 1), torch.tensor([0, 1])))
