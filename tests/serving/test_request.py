"""What columns of requests become, which are refused, and that they are typed once."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.export import InputSpec, Signature
from monolith.serving.layout import Layout
from monolith.serving.request import TypedColumns, fit, typed_columns
from monolith.serving.server import LimitsConfig
from monolith.serving.server.grpc_service import columns_of
from monolith.serving.server.http.json_request import parse_request
from monolith.serving.tensor_messages import message_of
from monolith.tensors import Ragged
from serving.layout.layout_cases import assign, feature, store_of


def asked_for(kind: Literal["ids", "dense"], dtype: str) -> Signature:
    return Signature(inputs={"x": InputSpec(kind=kind, dtype=dtype, shape=(None,))}, outputs={})


def fitted(values: torch.Tensor, dtype: str, kind: Literal["ids", "dense"] = "dense") -> torch.Tensor:
    found = fit({"x": values}, asked_for(kind, dtype), max_examples=100)["x"]
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
    values: list[Any], dtype: torch.dtype | None, kind: Literal["ids", "dense"], wanted: str
) -> None:
    """Numbers without a fraction are taken for a column of real numbers, by both; nothing else is converted."""
    asked = asked_for(kind, wanted)

    def found(columns: Any) -> Any:
        try:
            column = fit(columns(), asked, max_examples=100)["x"]
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


IDS = Signature(inputs={"item": InputSpec(kind="ids", dtype="int64", shape=(None,))}, outputs={})
AS_ROWS = Signature(inputs={"item": InputSpec(kind="dense", dtype="int64", shape=(None, 1))}, outputs={})


def test_typed_columns_are_taken_as_they_are_by_the_signature_that_typed_them() -> None:
    typed = fit({"item": torch.tensor([1, 2])}, IDS, max_examples=2)
    assert (typed.num_examples, typed.signature) == (2, IDS)
    assert typed_columns(typed, IDS, name="s") is typed
    equal = Signature(inputs=dict(IDS.inputs), outputs={})
    assert typed_columns(typed, equal, name="s") is typed
    with pytest.raises(InvalidArgumentError, match="input 'item': shape"):
        typed_columns(typed, AS_ROWS, name="s")
    made = typed_columns({"item": [1, 2]}, IDS, name="s")
    assert (type(made), made.num_examples) == (TypedColumns, 2)


def test_typed_columns_without_examples_are_refused_by_a_model() -> None:
    typed = fit({"item": torch.zeros(0, dtype=torch.int64)}, IDS, max_examples=2)
    with pytest.raises(InvalidArgumentError, match="the request has no examples"):
        typed_columns(typed, IDS, name="s")


def test_a_layout_takes_typed_columns_as_they_are() -> None:
    store = store_of({"t": 2})
    assign(store, "t", [1, 2], np.array([[1, 2], [3, 4]], np.float32))
    layout = Layout([feature("item", "t", (2,))], {"rows": store})
    for column in (
        torch.tensor([1, 2]),
        torch.tensor([[1], [2]]),
        torch.tensor([1, 0, 2])[::2],
        Ragged.from_lists([[1], [2]]),
    ):
        typed = TypedColumns({"item": column}, IDS, 2)
        assert torch.equal(layout.from_columns(typed).inputs["item"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        assert torch.equal(
            layout.from_columns({"item": column}).inputs["item"], layout.from_columns(typed).inputs["item"]
        )
        assert [keys.tolist() for keys, _, _ in layout.keys_of_columns(typed)] == [
            keys.tolist() for keys, _, _ in layout.keys_of_columns({"item": column})
        ]
    shared = layout.from_columns(TypedColumns({"item": torch.tensor([2])}, IDS, 3))
    assert shared.inputs["item"].tolist() == [[3.0, 4.0]] * 3
    assert (shared.num_examples, shared.num_ids) == (3, 1)


@pytest.mark.parametrize("column", [torch.ones(2), torch.ones(2, dtype=torch.int32), [b"a"]])
def test_a_layout_reads_no_memory_beyond_a_column_of_another_type(column: Any) -> None:
    layout = Layout([feature("item", "t", (2,))], {"rows": store_of({"t": 2})})
    with pytest.raises(TypeError, match="ids must be int64 on the CPU"):
        layout.from_columns(TypedColumns({"item": column}, IDS, 2))


def test_rows_of_rectangles_are_refused() -> None:
    parts = {"item/values": torch.zeros(3, 2, dtype=torch.int64), "item/row_splits": torch.tensor([0, 1, 3])}
    with pytest.raises(InvalidArgumentError, match=r"must have one or two dims, .* got the shape \[3, 2\]"):
        fit(parts, IDS, max_examples=2)
