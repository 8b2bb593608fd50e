"""What columns of requests become, and which are refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.serving.server.columns import fit


class Input(NamedTuple):
    kind: str
    dtype: str
    shape: tuple[int | None, ...]
    ragged: bool = False


class Asked(NamedTuple):
    inputs: dict[str, Input]
    outputs: dict[str, Any] = {}  # noqa: RUF012  (nobody writes into it)


def fitted(values: torch.Tensor, dtype: str, kind: str = "dense") -> torch.Tensor:
    found = fit({"x": values}, Asked({"x": Input(kind, dtype, (None,))}), max_examples=100).columns["x"]
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("given", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("wanted", ["float32", "int64"])
def test_complex_numbers_are_refused_and_lose_no_part(given: torch.dtype, wanted: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"must be {wanted}, got complex"):
        fitted(torch.ones(2, dtype=given), wanted)


@pytest.mark.parametrize("given", [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32])
@pytest.mark.parametrize("wanted", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_whole_numbers_that_a_column_cannot_hold_are_refused(given: torch.dtype, wanted: torch.dtype) -> None:
    name, limits = str(wanted).removeprefix("torch."), torch.iinfo(wanted)
    for number in {torch.iinfo(given).min, torch.iinfo(given).max, 0, 7}:
        values = torch.tensor([number, 1], dtype=given)
        if limits.min <= number <= limits.max:
            assert fitted(values, name).tolist() == [number, 1]
        else:
            with pytest.raises(InvalidArgumentError, match=f"must be {name}, .*, got {number}$"):
                fitted(values, name)


def test_hashes_of_64_bits_are_ids_of_either_sign() -> None:
    hashes = torch.tensor([2**64 - 1, 2**63, 3], dtype=torch.uint64)
    assert fitted(hashes, "int64", "ids").tolist() == [-1, -(2**63), 3]
    with pytest.raises(InvalidArgumentError, match=f"must be int32, .*, got {2**64 - 1}$"):
        fitted(hashes, "int32")


def test_no_examples_have_no_extremes() -> None:
    assert fitted(torch.zeros(0, dtype=torch.int64), "int32").dtype is torch.int32
