"""What the core reads and writes of texts of requests is what Python's own functions read and write."""

from __future__ import annotations

import base64
import json
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith import _core
from monolith.data.protos.example_pb2 import ExampleBatch
from monolith.errors import InternalError, InvalidArgumentError
from monolith.serving.server import json_request
from monolith.serving.server.encoded_samples import num_examples
from monolith.serving.server.json_answer import encode_answer
from monolith.testing import SmallModel

SIGNATURE = SmallModel().signatures["serving_default"]
LONG = st.binary(min_size=2000, max_size=2100)


def columns_of(body: bytes) -> Any:
    try:
        return json_request.parse_request(body, max_depth=32).columns(SIGNATURE)
    except InvalidArgumentError as error:
        return type(error)


def columns_by_json(body: bytes) -> Any:
    with mock.patch.object(json_request, "_document_with_bytes", return_value=None):
        return columns_of(body)


@given(LONG)
def test_a_long_text_is_cut_out_decoded_and_anything_else_is_left_alone(data: bytes) -> None:
    text = base64.b64encode(data)
    assert _core.cut_long_text(b'{"b64":"%b"}' % text, b"*") == (data, b'{"b64":"*"}')
    for wrong in (text[:-1], text + b"=", b"-" + text[1:], text + b"\n\n\n\n", text[:-1] + b"\xff"):
        assert _core.cut_long_text(b'{"b64":"%b"}' % wrong, b"*") is None
    assert _core.cut_long_text(text, b"*") is None


@settings(max_examples=50, deadline=None)
@given(LONG, st.sampled_from(["", " ", "\n\t"]), st.booleans())
def test_a_long_text_is_read_as_json_would(data: bytes, space: str, is_rows: bool) -> None:
    value = {"b64": base64.b64encode(data).decode()}
    document: Any = {"instances": [{"examples": value}]} if is_rows else {"inputs": {"example_batch": value}}
    body = json.dumps(document, separators=("," + space, ":" + space)).encode()
    json_request._usual_place.cache_clear()
    with mock.patch.object(json, "loads", wraps=json.loads) as loads:
        found = columns_of(body)
        again = columns_of(body)
    assert again == found == {"examples" if is_rows else "example_batch": [data]} == columns_by_json(body)
    assert all(len(call.args[0]) < 100 for call in loads.call_args_list)  # JSON was given what is left without the text
    if not is_rows:
        assert loads.call_count == 1  # a frame that was seen is known


@settings(max_examples=20, deadline=None)
@given(LONG, LONG)
def test_what_is_remembered_of_a_frame_is_not_its_text(first: bytes, second: bytes) -> None:
    for data in (first, second, first):
        document = {
            "signature_name": "serving_default",
            "inputs": {"example_batch": {"b64": base64.b64encode(data).decode()}},
        }
        assert columns_of(json.dumps(document).encode()) == {"example_batch": [data]}


@settings(max_examples=100, deadline=None)
@given(LONG, st.integers(0, 3000), st.binary(max_size=3), st.integers(0, 4))
def test_a_damaged_text_is_refused_as_json_would(data: bytes, place: int, put: bytes, cut: int) -> None:
    body = json.dumps({"inputs": {"example_batch": {"b64": base64.b64encode(data).decode()}}}).encode()
    body = body[:place] + put + body[place + cut :]
    assert columns_of(body) == columns_by_json(body)


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": {"example_batch": [{"b64": "A" * 4000}, {"b64": "*"}]}},
        {"inputs": {'a"b64': "A" * 4000}},
        {"inputs": {"example_batch": {"b64": "A" * 4000, "x": 1}}},
        {"inputs": {"example_batch": {"b64": "A" * 3999 + "/"}}},
        {"inputs": {"example_batch": {"b64": "A" * 4000}}, "b64": "x"},
        {"b64": "A" * 4000},
        ["b64", "A" * 4000],
        {"inputs": "b64", "instances": {"b64": "A" * 4000}},
        {"inputs": {"example_batch": {"b64": "A" * 4000}}, "signature_name": "*"},
        {"inputs": {"example_batch": {"b64": "A" * 4000}}, "signature_name": 1},
        {"inputs": {"example_batch": {"b64": "A" * 4000}, "user": {"b64": "*"}}},
    ],
)
def test_documents_that_look_alike(document: Any) -> None:
    for body in (json.dumps(document).encode(), json.dumps(document).replace("/", "\\/").encode()):
        assert columns_of(body) == columns_by_json(body)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_numbers_of_an_answer_are_the_floats_that_they_were(values: list[float]) -> None:
    scores = torch.tensor(values)
    for outputs in ({"score": scores}, {"score": scores, "pair": torch.stack([scores, -scores], 1)}):
        read = json.loads(encode_answer(outputs, is_rows=False))["outputs"]
        for name, expected in outputs.items():
            found = read if len(outputs) == 1 else read[name]
            assert np.array_equal(np.array(found, dtype=np.float32), expected.numpy())
            assert all(type(each) is float for each in np.ravel(np.array(found, dtype=object)).tolist())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_answer_that_is_not_finite_names_its_output(bad: float, dtype: torch.dtype) -> None:
    outputs = {"first": torch.ones(2), "second": torch.tensor([1.0, bad], dtype=dtype)}
    for is_rows in (False, True):
        with pytest.raises(InternalError, match="output 'second'"):
            encode_answer(outputs, is_rows=is_rows)


@given(st.integers(0, 10_000), st.integers(0, 3))
def test_the_size_of_a_batch(size: int, num_columns: int) -> None:
    batch = ExampleBatch(batch_size=size)
    for number in range(num_columns):
        batch.named_feature_list.add(name=f"c{number}").feature.add().fid_v2_list.value.append(7)
    encoded = batch.SerializeToString()
    assert num_examples("example_batch", [encoded], 20_000) == size
    if encoded:
        with pytest.raises(InvalidArgumentError, match="cut off or foreign"):
            num_examples("example_batch", [encoded + b"\x1a\x09"], 20_000)
