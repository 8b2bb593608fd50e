"""Rows with a wrong value are bad records: the first one raises, or some are left out and counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monolith.data import BadRecords, Batch, InMemoryDataset, InRange
from monolith.errors import DataLossError
from monolith.tensors import Ragged


def batch(values: Any, **others: Any) -> Batch:
    return Batch({"value": values, **others}, num_rows=len(values))


def test_good_rows_stay_and_bad_ones_are_counted_by_name() -> None:
    bad = BadRecords(limit=5)
    dataset = InMemoryDataset(
        [
            batch(torch.tensor([3, 10, 9, -1]), name=[b"a", b"b", b"c", b"d"]),
            batch(torch.tensor([0, 1]), name=[b"e", b"f"]),
            batch(torch.tensor([77]), name=[b"g"]),
        ]
    ).filter(InRange("value", 0, 10, bad=bad, named_by="name"))
    assert [each["value"].tolist() for each in dataset] == [[3, 9], [0, 1]]  # type: ignore[union-attr]
    assert bad.count == 3
    assert bad.first[:2] == (
        "column 'value': row 1 of a batch must be in [0, 10), got 10 (name b'b')",
        "column 'value': row 3 of a batch must be in [0, 10), got -1 (name b'd')",
    )


def test_the_first_bad_row_raises_by_default() -> None:
    with pytest.raises(DataLossError, match=r"column 'value': row 1 of a batch must be in \[0, 10\), got 10"):
        InRange("value", 0, 10)(batch(torch.tensor([3, 10])))


def test_a_row_of_several_values_is_good_if_all_are() -> None:
    ragged = Ragged.from_lists([[1, 2], [], [3, 30, 31], [40], [5]])
    bad = BadRecords(limit=9)
    assert InRange("value", 0, 10, bad=bad)(Batch({"value": ragged}, num_rows=5)).tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert bad.count == 2
    wide = torch.tensor([[0.0, 1.0], [float("nan"), 1.0], [0.0, float("inf")]])
    assert InRange("value", 0, 10, bad=bad)(batch(wide)).tolist() == [True, False, False]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="InRange: low must be below high, got 5 and 5"):
        InRange("value", 5, 5)
    with pytest.raises(TypeError, match="column 'value': expected numbers, got list"):
        InRange("value", 0, 1)(batch([b"text"]))
