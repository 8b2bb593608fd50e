"""What the core reads and writes of texts of requests is what Python's own functions read and write."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from monolith.data.protos.example_pb2 import ExampleBatch
from monolith.errors import InternalError, InvalidArgumentError
from monolith.serving.request import num_samples
from monolith.serving.server import LimitsConfig
from monolith.serving.server.http import json_request
from monolith.serving.server.http.json_request import encode_answer
from monolith.testing import SmallModel

SIGNATURE = SmallModel().signatures["serving_default"]
TEXT = SmallModel().signatures["text"]
IDS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "tags": st.one_of(st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)),
            "weight": st.one_of(
                st.integers(-(2**70), 2**70), st.floats(width=32, allow_nan=False, allow_infinity=False)
            ),
        }
    ),
    min_size=1,
    max_size=6,
)


def columns_of(body: bytes, signature: Any = SIGNATURE) -> dict[str, Any]:
    return json_request.parse_request(body, LimitsConfig()).columns(signature)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from(["", " ", "\n\t"]), st.booleans())
def test_numbers_are_those_of_json(rows: list[dict[str, Any]], space: str, is_rows: bool) -> None:
    inputs = {name: [row[name] for row in rows] for name in rows[0]}
    body = json.dumps({"instances": rows} if is_rows else {"inputs": inputs}, separators=("," + space, ":" + space))
    found = columns_of(body.encode())
    assert found["tags"].to_lists() == [each if isinstance(each, list) else [each] for each in inputs["tags"]]
    assert found["weight"].to(torch.float64).tolist() == [float(each) for each in inputs["weight"]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(), st.binary()), min_size=1, max_size=5), st.booleans())
def test_texts_and_bytes_are_those_of_json(values: list[str | bytes], is_ascii: bool) -> None:
    instances = [each if isinstance(each, str) else {"b64": base64.b64encode(each).decode()} for each in values]
    assume(not any(isinstance(each, str) and any("\ud800" <= letter <= "\udfff" for letter in each) for each in values))
    body = json.dumps({"signature_name": "text", "instances": instances}, ensure_ascii=is_ascii).encode()
    expected = [each.encode() if isinstance(each, str) else each for each in values]
    assert columns_of(body, TEXT) == {"text": expected}
    assert columns_of(body.replace(b"/", b"\\/"), TEXT) == {"text": expected}


@settings(max_examples=500, deadline=None)
@given(ROWS, st.integers(0, 300), st.binary(max_size=3), st.integers(0, 4))
def test_what_is_taken_of_a_damaged_body_is_json(rows: list[dict[str, Any]], at: int, put: bytes, cut: int) -> None:
    body = json.dumps({"instances": rows}).encode()
    body = body[:at] + put + body[at + cut :]
    try:
        found = columns_of(body)
    except InvalidArgumentError:
        return
    told = json.loads(body)["instances"]
    assert [len(row) for row in told] == [2] * found["weight"].shape[0]
    assert found["weight"].to(torch.float64).tolist() == [float(row["weight"]) for row in told]


@pytest.mark.parametrize("wrong", ["Zg", "Zg=", "Zm9v\n", "Zm-v", "====", "Zm9\u00c3"])
def test_what_is_no_base64_is_refused(wrong: str) -> None:
    body = json.dumps({"inputs": {"example_batch": {"b64": wrong}}}).encode()
    with pytest.raises(InvalidArgumentError, match="input 'example_batch': b64 must be base64"):
        columns_of(body)


@pytest.mark.parametrize(
    "value", [{"b64": "AAAA", "x": 1}, {"b64": 5}, {"B64": "AAAA"}, {}, {"x": [{"y": [1]}]}, [{"b64": "AAAA"}]]
)
def test_objects_that_look_like_bytes_are_none(value: object) -> None:
    body = json.dumps({"inputs": {"example_batch": [value]}}).encode()
    with pytest.raises(InvalidArgumentError, match="must be a text or"):
        columns_of(body)


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
    assert num_samples("example_batch", [encoded], 20_000) == size
    if encoded:
        with pytest.raises(InvalidArgumentError, match="cut off or foreign"):
            num_samples("example_batch", [encoded + b"\x1a\x09"], 20_000)
