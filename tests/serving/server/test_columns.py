"""What columns of requests become, and which are refused."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.serving.server import LimitsConfig
from monolith.serving.server.columns import fit
from monolith.serving.server.grpc_service import columns_of
from monolith.serving.server.http.json_request import parse_request
from monolith.serving.tensor_messages import message_of


class Input(NamedTuple):
    kind: str
    dtype: str
    shape: tuple[int | None, ...]
    ragged: bool = False
    texts: None = None


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
def test_integers_that_a_column_cannot_hold_are_rejected(given: torch.dtype, wanted: torch.dtype) -> None:
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


GIVEN: list[tuple[list[Any], torch.dtype | None]] = [
    ([3, 7], torch.int64),
    ([3, -(2**63)], torch.int64),
    ([2**40, 7], torch.int64),
    ([2**64 - 1, 7], torch.uint64),
    ([0.5, 7.25], torch.float32),
    ([0.5, 1e300], torch.float64),
    ([True, False], torch.bool),
    (["a", ""], None),
]


@pytest.mark.parametrize(("values", "dtype"), GIVEN)
@pytest.mark.parametrize(
    ("kind", "wanted"), [("ids", "int64"), ("dense", "int64"), ("dense", "int32"), ("dense", "float32")]
)
def test_rest_and_grpc_take_the_same_values_for_a_column(
    values: list[Any], dtype: torch.dtype | None, kind: str, wanted: str
) -> None:
    """Numbers without a fraction are taken for a column of real numbers, by both; nothing else is converted."""
    asked = Asked({"x": Input(kind, wanted, (None,))})

    def found(columns: Any) -> Any:
        try:
            column = fit(columns(), asked, max_examples=100).columns["x"]
        except InvalidArgumentError:
            return "refused"
        assert isinstance(column, torch.Tensor)
        return column.tolist()

    sent = [each.encode() for each in values] if dtype is None else torch.tensor(values, dtype=dtype)
    by_grpc = found(lambda: columns_of({"x": message_of(sent)}, asked))
    by_rest = found(
        lambda: parse_request(json.dumps({"inputs": {"x": values}}).encode(), LimitsConfig()).columns(asked)
    )
    assert by_grpc == by_rest
    is_whole = dtype in {torch.int64, torch.uint64}
    assert (by_rest == "refused") == (
        dtype in {None, torch.bool}
        or (not is_whole and wanted != "float32")
        or values == [0.5, 1e300]
        or (kind == "dense" and wanted.startswith("int") and dtype is torch.uint64)
        or (wanted == "int32" and values != [3, 7])
    )
