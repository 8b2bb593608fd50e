"""What a record holds: features and answers of one example, as an impression that any reader of Examples takes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from monolith.data import DenseColumn, FirstBytes, Floats, Ids, Ints, Parser
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import DataLossError
from monolith.online.joiner.events import decode_event
from monolith.serving.request_log import AnsweredRequest
from monolith.serving.request_log.records import records_of
from monolith.serving.served_model import ModelVersion
from monolith.tensors import Ragged
from serving.request_log.answered_requests import IDS, answered, plain

SIGNED = 1 << 63


def _samples(request: AnsweredRequest, **options: Any) -> list[Example]:
    events = [decode_event(each) for each in records_of(request, time_ms=1000, **options)]
    return [Example.FromString(each.sample) for each in events]


def _items(request: AnsweredRequest, column: str | None) -> list[int]:
    records = records_of(request, time_ms=1000, item_column=column)
    return [int.from_bytes(decode_event(each).key[-8:], "little") for each in records]


def _features(example: Example) -> dict[str, Any]:
    found = {}
    for named in example.named_feature:
        kind = named.feature.WhichOneof("type")
        found[named.name] = (kind, list(getattr(named.feature, str(kind)).value))
    return found


def test_every_kind_of_column_is_read_back_by_the_parser_of_training() -> None:
    ids = Ragged.from_lists([[-SIGNED, SIGNED - 1], [], [0]])
    floats = Ragged.from_lists([[], [0.5, -1.5], [3.0]], dtype=torch.float32)
    columns: dict[str, Any] = {
        "user": torch.tensor([-7]),
        "tags": ids,
        "price": torch.tensor([[1.5, -2.0], [0.0, float(np.float32(0.1))], [3e38, -1e-45]]),
        "square": torch.arange(12.0).reshape(3, 2, 2),
        "floats": floats,
        "count": torch.tensor([-SIGNED, -1, SIGNED - 1]),
        "flag": torch.tensor([True, False, True]),
        "half": torch.tensor([0.5, 0.25, -1.0], dtype=torch.float16),
        "text": [b"a", b"", b"\xff" * 300],
    }
    request = answered(b"r", columns, {"predictions": torch.tensor([0.1, 0.2, 0.3])}, ids=("user", "tags"))
    parser = Parser(
        "example",
        [
            Ids("user"),
            Ids("tags"),
            DenseColumn("price", width=2),
            DenseColumn("square", width=4),
            Floats("floats"),
            DenseColumn("count", dtype="int64"),
            Ints("flag"),
            DenseColumn("half"),
            FirstBytes("text"),
            DenseColumn("__SERVED__/predictions"),
        ],
    )
    batch: Any = parser.parse([each.SerializeToString() for each in _samples(request)])
    assert batch["user"].to_lists() == [[-7]] * 3
    assert batch["tags"].to_lists() == ids.to_lists()
    assert torch.equal(batch["price"], columns["price"])
    assert torch.equal(batch["square"], torch.arange(12.0).reshape(3, 4))
    assert batch["floats"].to_lists() == floats.to_lists()
    assert batch["count"].reshape(-1).tolist() == [-SIGNED, -1, SIGNED - 1]
    assert batch["flag"].to_lists() == [[1], [0], [1]]
    assert batch["half"].reshape(-1).tolist() == [0.5, 0.25, -1.0]
    assert batch["text"] == columns["text"]
    assert torch.equal(batch["__SERVED__/predictions"].reshape(-1), request.outputs["predictions"])


def test_a_record_describes_how_it_was_answered() -> None:
    version = ModelVersion(17, 3, {"rows-0": 12})
    outputs = {
        "score": torch.tensor([0.25, 0.75]),
        "vector": torch.eye(2),
        "wide": torch.tensor([1.0 / 3, 2.0], dtype=torch.float64),
        "temperature": torch.tensor(2.5),
    }
    request = answered(b"caf\xe9", {"user": torch.tensor([7, 8])}, outputs, ids=("user",), version=version)
    second = _features(_samples(request)[1])
    assert json.loads(second["__SERVED__"][1][0]) == {
        "request": "caf\xe9",
        "model": "ranker",
        "signature": "serving_default",
        "export": 17,
        "dense": 3,
        "sparse": {"rows-0": 12},
        "examples": 2,
        "example": 1,
    }
    assert second["__SERVED__/score"] == ("float_list", [0.75])
    assert second["__SERVED__/vector"] == ("float_list", [0.0, 1.0])
    assert second["__SERVED__/wide"] == ("double_list", [2.0])
    assert second["__SERVED__/temperature"] == ("float_list", [2.5])
    event = decode_event(records_of(request, time_ms=1234)[0])
    assert (event.key[:-8], event.time_ms, event.actions) == (b"caf\xe9", 1234, ())


def test_an_item_is_named_by_its_column_or_by_its_number() -> None:
    assert _items(plain(3), None) == [0, 1]
    assert _items(plain(3), "item") == [300, 301]
    assert _items(plain(3), "user") == [3, 3]
    assert _items(plain(3), "elsewhere") == [0, 1]
    many = answered(b"r", {"item": Ragged.from_lists([[], [5, 6], [-1]])}, {"p": torch.ones(3)}, ids=("item",))
    assert _items(many, "item") == [0, 5, (1 << 64) - 1]
    none = answered(b"r", {"item": Ragged.from_lists([[], []], dtype=torch.int64)}, {"p": torch.ones(2)}, ids=("item",))
    assert _items(none, "item") == [0, 0]


def _example() -> Example:
    example = Example(label=[1.0])
    example.named_feature.add(name="item").feature.fid_v2_list.value.append(5)
    example.named_feature.add(name="__SERVED__").feature.bytes_list.value.append(b"of an earlier answer")
    example.named_feature.add(name="__SERVED__/predictions").feature.float_list.value.append(9.0)
    example.line_id.uid = 4
    return example


def _encoded(form: str, samples: list[bytes], count: int) -> AnsweredRequest:
    outputs = {"predictions": torch.full((count,), 0.5)}
    version = ModelVersion(7, -1, {})
    return AnsweredRequest(b"r", "ranker", "serving_default", {"item": IDS}, {form: samples}, count, outputs, version)


def test_encoded_samples_are_logged_with_their_features_and_without_labels() -> None:
    instance = Instance(label=[1.0])
    instance.feature.add(name="item").fid.append(6)
    batch = ExampleBatch(batch_size=2)
    batch.named_feature_list.add(name="item", type=1).feature.add().fid_v2_list.value.append(8)
    several = Example()
    several.named_feature.add(name="item").feature.int64_list.value.extend([7, 9])
    empty = Example()
    empty.named_feature.add(name="item").feature.fid_v2_list.SetInParent()
    listed = [several.SerializeToString(), empty.SerializeToString()]
    assert _items(_encoded("examples", listed, 2), "item") == [7, 0], "the first id, or none"
    forms: dict[str, tuple[list[bytes], list[int]]] = {
        "examples": ([_example().SerializeToString()] * 2, [5, 5]),
        "instances": ([instance.SerializeToString()], [6]),
        "example_batch": ([batch.SerializeToString()], [8, 8]),
    }
    for form, (samples, items) in forms.items():
        request = _encoded(form, samples, len(items))
        assert request.is_encoded
        assert _items(request, "item") == items
        assert _items(request, None) == list(range(len(items)))
        for example, item in zip(_samples(request), items, strict=True):
            assert not example.label
            features = _features(example)
            assert features["item"] == ("fid_v2_list", [item])
            assert features["__SERVED__/predictions"] == ("float_list", [0.5])
            assert len(example.named_feature) == 3
    assert _samples(_encoded("examples", forms["examples"][0], 2))[0].line_id.uid == 4


@pytest.mark.parametrize("form", ["examples", "instances", "example_batch"])
def test_bytes_that_are_no_samples_are_named(form: str) -> None:
    with pytest.raises(DataLossError, match=form):
        records_of(_encoded(form, [b"\xff\xff"], 1), time_ms=1)
