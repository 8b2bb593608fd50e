"""Samples become the batch that the messages say, whatever their wire form; what is no sample is told and counted."""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.parser_reference import (
    INVALID,
    dense,
    floats_of,
    ids_of,
    label_of,
    line_id_of,
    named,
    rows_of,
    signed,
    v2_of_v1,
    weight_of,
)
from monolith.data import (
    INVALID_LABEL,
    BadRecords,
    Batch,
    DenseColumn,
    FirstBytes,
    Floats,
    Ids,
    Ints,
    Label,
    LineIdField,
    NestedIds,
    Parser,
    Records,
    Weight,
    split_records,
)
from monolith.data.columns import Column
from monolith.data.protos.example_pb2 import Example, ExampleBatch, Feature, FeatureListType
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.line_id_pb2 import LineId
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tensors import Ragged

COLUMNS = [
    Ids("user"),
    Ids("item"),
    Floats("price"),
    DenseColumn("price_2", width=2),
    DenseColumn("count", width=3, dtype="int64"),
    Ints("codes"),
    NestedIds("history"),
    FirstBytes("name"),
    Label(width=2),
    Weight(),
    LineIdField("uid"),
    LineIdField("req_time"),
    LineIdField("actions"),
    LineIdField("special_strategies"),
    LineIdField("sample_rate"),
    LineIdField("rank"),
    LineIdField("is_draw"),
    LineIdField("cid"),
]
U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
F32 = st.floats(width=32, allow_nan=False)


def rows(batch: Batch, name: str) -> list[Any]:
    column = batch[name]
    if isinstance(column, list):
        return column
    return column.to_lists() if isinstance(column, Ragged) else column.tolist()


@st.composite
def features(draw: st.DrawFn, name: str) -> Feature:
    feature = Feature()
    if name in {"user", "item"}:
        ids = feature.fid_v1_list if draw(st.booleans()) else feature.fid_v2_list
        ids.value.extend(draw(st.lists(U64, max_size=4)))
        ids.SetInParent()
    elif name in {"price", "price_2", "__LABEL__", "instance_weight"}:
        feature.float_list.value.extend(draw(st.lists(F32, max_size=4)))
        feature.float_list.SetInParent()
    elif name in {"count", "codes"}:
        feature.int64_list.value.extend(draw(st.lists(I64, max_size=4)))
        feature.int64_list.SetInParent()
    elif name == "history":
        for ids_list in draw(st.lists(st.lists(U64, max_size=3), max_size=3)):
            feature.fid_v2_lists.list.add().value.extend(ids_list)
        feature.fid_v2_lists.SetInParent()
    elif name == "__LINE_ID__":
        feature.bytes_list.value.append(draw(line_ids()).SerializeToString())
    else:
        feature.bytes_list.value.extend(draw(st.lists(st.binary(max_size=5), max_size=2)))
        feature.bytes_list.SetInParent()
    return feature


@st.composite
def line_ids(draw: st.DrawFn) -> LineId:
    line_id = LineId(actions=draw(st.lists(I32, max_size=3)), special_strategies=draw(st.lists(I32, max_size=3)))
    if draw(st.booleans()):
        line_id.uid, line_id.req_time, line_id.rank = draw(U64), draw(I64), draw(I32)
        line_id.is_draw, line_id.sample_rate, line_id.cid = draw(st.booleans()), draw(F32), draw(st.text(max_size=3))
    return line_id


NAMES = ["user", "item", "price", "price_2", "count", "codes", "history", "name", "__LABEL__", "__LINE_ID__"]
NAMES += ["instance_weight", "nobody asks"]


@st.composite
def examples(draw: st.DrawFn) -> Example:
    example = Example(label=draw(st.lists(F32, max_size=3)))
    for name in draw(st.permutations(draw(st.lists(st.sampled_from(NAMES), unique=True)))):
        example.named_feature.add(name=name, id=1, feature=draw(features(name)))
    if draw(st.booleans()):
        example.line_id.CopyFrom(draw(line_ids()))
    example.instance_weight = draw(F32)
    return example


def expected_of(example: Example) -> dict[str, object]:
    def one(name: str) -> Feature:
        return (named(example, name) or [Feature()])[0]

    line_id = line_id_of(example)
    return {
        "user": ids_of(one("user")),
        "item": ids_of(one("item")),
        "price": floats_of(one("price")),
        "price_2": dense(floats_of(one("price_2")), 2, 0.0),
        "count": dense(list(one("count").int64_list.value), 3, 0),
        "codes": list(one("codes").int64_list.value),
        "history": [[signed(number) for number in each.value] for each in one("history").fid_v2_lists.list],
        "name": (list(one("name").bytes_list.value) or [b""])[0],
        "label": dense(label_of(example), 2, INVALID),
        "instance_weight": weight_of(example),
        "uid": signed(line_id.uid),
        "req_time": line_id.req_time,
        "actions": list(line_id.actions),
        "special_strategies": list(line_id.special_strategies),
        "sample_rate": line_id.sample_rate,
        "rank": line_id.rank,
        "is_draw": int(line_id.is_draw),
        "cid": line_id.cid.encode(),
    }


def check(batch: Batch, wanted: list[Example]) -> None:
    assert batch.num_rows == len(wanted)
    expected = [expected_of(example) for example in wanted]
    for column in COLUMNS:
        assert rows(batch, column.name) == [row[column.name] for row in expected], column.name


@given(st.lists(examples(), max_size=6))
def test_any_examples_become_the_batch_that_their_messages_specify(samples: list[Example]) -> None:
    parser = Parser("example", COLUMNS)
    records = [sample.SerializeToString() for sample in samples]
    check(parser.parse(records), samples)
    check(parser.parse(Records.from_list(records)), samples)


@st.composite
def example_batches(draw: st.DrawFn) -> ExampleBatch:
    batch = ExampleBatch(batch_size=draw(st.integers(0, 4)))
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        is_shared = draw(st.booleans())
        column = batch.named_feature_list.add(name=name, type=FeatureListType.SHARED if is_shared else "INDIVIDUAL")
        column.feature.extend(draw(features(name)) for _ in range(1 if is_shared else batch.batch_size))
    return batch


@given(st.lists(example_batches(), max_size=3))
def test_any_example_batches_become_their_rows(batches: list[ExampleBatch]) -> None:
    records = [batch.SerializeToString() for batch in batches]
    check(Parser("example_batch", COLUMNS).parse(records), [row for batch in batches for row in rows_of(batch)])


@given(st.lists(st.lists(U64, max_size=6), max_size=4), st.lists(F32, max_size=3), line_ids())
def test_any_instances_become_features_by_slot(fids: list[list[int]], values: list[float], line_id: LineId) -> None:
    instances = [Instance(fid=row, value=values, label=[1.0], line_id=line_id) for row in fids]
    for instance in instances:
        instance.feature.add(name="fc_named", fid=[5, 6])
        instance.feature.add(name="fc_lists").fid_list.add().value.extend([7, 8])
    slots = sorted({number >> 54 for row in fids for number in row})[:5]
    columns = [*(Ids(f"fc_slot_{slot}") for slot in slots), Ids("fc_named"), NestedIds("fc_lists"), Floats("value")]
    columns += [Label(width=2), LineIdField("actions")]
    batch = Parser("instance", columns).parse([instance.SerializeToString() for instance in instances])
    for slot in slots:
        wanted = [[signed(v2_of_v1(number)) for number in row if number >> 54 == slot] for row in fids]
        assert rows(batch, f"fc_slot_{slot}") == wanted
    assert rows(batch, "fc_named") == [[5, 6]] * len(fids)
    assert rows(batch, "fc_lists") == [[[7, 8]]] * len(fids)
    assert rows(batch, "value") == [values] * len(fids)
    assert rows(batch, "label") == [[1.0, INVALID]] * len(fids)
    assert rows(batch, "actions") == [list(line_id.actions)] * len(fids)


def test_ids_of_the_first_layout_become_those_of_the_second() -> None:
    example = Example()
    ids = [54043195528458297, (1 << 64) - 1]
    example.named_feature.add(name="user").feature.fid_v1_list.value.extend(ids)
    batch = Parser("example", [Ids("user")]).parse([example.SerializeToString()])
    assert rows(batch, "user") == [[844424930144313, 288230376151711743]]
    instance = Parser("instance", [Ids("fc_slot_3"), Ids("fc_slot_1023")]).parse(
        [Instance(fid=ids).SerializeToString()]
    )
    assert rows(instance, "fc_slot_3") == [[844424930144313]]
    assert rows(instance, "fc_slot_1023") == [[288230376151711743]]


def test_tf_examples_take_slots_magnitudes_and_labels() -> None:
    example = TfExample()
    feature = example.features.feature
    feature["id"].int64_list.value.extend([5, -1])
    feature["price"].float_list.value.extend([0.0, 1.0, -6.9, 7.0, float("inf"), float("nan")])
    feature["y"].int64_list.value.append(1)
    feature["text"].bytes_list.value.append(b"abc")
    columns: list[Column] = [Ids("id", slot=3), Ids("price", slot=4), Label("y"), FirstBytes("text")]
    batch = Parser("tf_example", columns).parse([example.SerializeToString()])
    assert rows(batch, "id") == [[3 << 48 | 5, 3 << 48 | (1 << 48) - 1]]
    assert rows(batch, "price") == [[4 << 48 | magnitude for magnitude in (0, 1, 2, 3, 1024, 1024)]]
    assert rows(batch, "y") == [[1.0]]
    assert rows(batch, "text") == [b"abc"]
    assert rows(Parser("tf_example", [Ids("id")]).parse([example.SerializeToString()]), "id") == [[5, -1]]
    with pytest.raises(DataLossError, match=r"feature 'price' must hold int64_list, got float_list"):
        Parser("tf_example", [Ids("price")]).parse([example.SerializeToString()])


def field(number: int, wire: int, body: bytes) -> bytes:
    tag = number << 3 | wire
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return head + (bytes([len(body)]) if wire == 2 else b"") + body


def test_every_wire_form_of_a_message_is_read() -> None:
    """Lists in parts or element by element, members that replace each other, fields in any order, unknown ones."""
    one, two = struct.pack("<Q", 1), struct.pack("<Q", 2)
    loose = field(1, 1, one) + field(1, 2, two + one) + field(7, 0, b"\x05") + field(1, 1, two)
    feature = field(3, 2, field(1, 2, b"\0\0\0\0")) + field(2, 2, loose) + field(2, 2, field(1, 1, one))
    named_feature = field(2, 2, feature[:8]) + field(3, 0, b"\x09") + field(2, 2, feature[8:]) + field(1, 2, b"user")
    label = field(101, 5, struct.pack("<f", 0.5)) + field(101, 2, struct.pack("<f", 0.25)) + field(101, 0, b"\x01")
    line = field(100, 2, field(6, 0, b"\x03")) + field(100, 2, field(6, 2, b"\x04\x05") + field(3, 0, b"\x07"))
    record = label + line + field(1, 2, named_feature) + field(99, 2, b"unknown")
    message = Example.FromString(record)
    assert list(message.named_feature[0].feature.fid_v2_list.value) == [1, 2, 1, 2, 1]
    batch = Parser("example", COLUMNS).parse([record])
    check(batch, [message])


def test_scalars_are_lists_of_one() -> None:
    example = Example()
    example.named_feature.add(name="count").feature.int64_value = -7
    example.named_feature.add(name="price").feature.float_value = 1.5
    example.named_feature.add(name="price_2").feature.double_value = 2.5
    example.named_feature.add(name="name").feature.bytes_value = b"xyz"
    batch = Parser("example", COLUMNS).parse([example.SerializeToString()])
    assert [rows(batch, name)[0] for name in ("count", "price", "price_2", "name")] == [
        [-7, 0, 0],
        [1.5],
        [2.5, 0.0],
        b"xyz",
    ]


def test_a_feature_that_stands_twice_keeps_all_its_values() -> None:
    example = Example()
    example.named_feature.add(name="user").feature.fid_v2_list.value.extend([1, 2])
    example.named_feature.add(name="user").feature.fid_v2_list.value.extend([3])
    assert rows(Parser("example", [Ids("user")]).parse([example.SerializeToString()]), "user") == [[1, 2, 3]]
    example.named_feature.add(name="user").feature.fid_v1_list.value.extend([3])
    with pytest.raises(DataLossError, match="'user' stands twice, as fid_v2_list and as fid_v1_list"):
        Parser("example", [Ids("user")]).parse([example.SerializeToString()])


def test_padded_ids_lose_their_end_or_get_zeros() -> None:
    example = Example()
    example.named_feature.add(name="user").feature.fid_v2_list.value.extend([1, 2, 3])
    batch = Parser("example", [Ids("user", length=2), Ids("item", length=2)]).parse([example.SerializeToString()] * 2)
    assert rows(batch, "user") == [[1, 2]] * 2
    assert rows(batch, "item") == [[0, 0]] * 2


def test_a_missing_label_is_invalid_in_every_format() -> None:
    for sample, record in (
        ("example", Example().SerializeToString()),
        ("example_batch", ExampleBatch(batch_size=1).SerializeToString()),
        ("instance", Instance().SerializeToString()),
        ("tf_example", TfExample().SerializeToString()),
    ):
        batch = Parser(sample, [Label(width=2), Weight()]).parse([record])
        assert rows(batch, "label") == [[INVALID_LABEL, INVALID_LABEL]]
        assert rows(batch, "instance_weight") == [1.0]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_not_positive_is_one(weight: float) -> None:
    example = Example(instance_weight=weight)
    assert rows(Parser("example", [Weight()]).parse([example.SerializeToString()]), "instance_weight") == [1.0]


@pytest.mark.parametrize(
    ("columns", "set_feature", "message"),
    [
        ([Ids("f")], "float_list", "must hold fid_v1_list or fid_v2_list, got float_list"),
        ([Ids("f")], "int64_list", "must hold fid_v1_list or fid_v2_list, got int64_list"),
        ([Floats("f")], "fid_v2_list", "must hold float_list or double_list, got fid_v2_list"),
        ([DenseColumn("f", dtype="int64")], "float_list", "must hold int64_list, got float_list"),
        ([NestedIds("f")], "fid_v2_list", "must hold fid_v1_lists or fid_v2_lists, got fid_v2_list"),
        ([FirstBytes("f")], "int64_list", "must hold bytes_list, got int64_list"),
    ],
)
def test_a_feature_of_another_type_is_reported_and_counted(
    columns: list[Column], set_feature: str, message: str
) -> None:
    example, good = Example(), Example()
    getattr(example.named_feature.add(name="f").feature, set_feature).SetInParent()
    records = [good.SerializeToString(), example.SerializeToString(), good.SerializeToString()]
    with pytest.raises(DataLossError, match=f"record 1: feature 'f' {message}"):
        Parser("example", columns).parse(records)
    bad = BadRecords(limit=1)
    assert Parser("example", columns, bad=bad).parse(records).num_rows == 2
    assert bad.count == 1
    with pytest.raises(DataLossError, match="2 bad records, limit is 1"):
        Parser("example", columns, bad=bad).parse(records)


def test_a_bad_record_of_a_file_is_named_by_file_and_offset() -> None:
    payload = struct.pack("<Q", 2) + b"\x0a\x00" + struct.pack("<Q", 2) + b"\x0a\x05"
    records = split_records(payload, origin="file 'clicks'")
    with pytest.raises(DataLossError, match=r"file 'clicks': record at offset 18: not an Example"):
        Parser("example", [Ids("user")]).parse(records)


def test_columns_of_a_batch_must_have_its_rows() -> None:
    batch = ExampleBatch(batch_size=3)
    column = batch.named_feature_list.add(name="user")
    column.feature.add().fid_v2_list.value.append(1)
    with pytest.raises(DataLossError, match="'user' has 1 entries for a batch of 3 rows"):
        Parser("example_batch", [Ids("user")]).parse([batch.SerializeToString()])
    column.type = FeatureListType.SHARED
    assert rows(Parser("example_batch", [Ids("user")]).parse([batch.SerializeToString()]), "user") == [[1]] * 3
    del column.feature[:]
    with pytest.raises(DataLossError, match="'user' is SHARED and holds nothing"):
        Parser("example_batch", [Ids("user")]).parse([batch.SerializeToString()])


def test_wrong_schemas_are_refused() -> None:
    for columns, message in (
        ([Ids("a"), Floats("a")], "'a' is requested twice"),
        ([LineIdField("nothing")], "LineId has no field 'nothing'; known are uid, req_time"),
        ([Label(), Label("other")], "'__LABEL__' is requested twice"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            Parser("example", columns)
    with pytest.raises(InvalidArgumentError, match=r"tf.train.Example has no LineId"):
        Parser("tf_example", [LineIdField("uid")])
    with pytest.raises(ValueError, match="nothing to parse"):
        Parser("plaintext", [])
    with pytest.raises(ValueError, match="sample format must be one of"):
        Parser("json", [])
    for make, message in (
        (lambda: DenseColumn("x", width=0), "width must be >= 1"),
        (lambda: DenseColumn("x", dtype="int32"), "dtype must be"),
        (lambda: Ids("x", slot=1 << 15), "slot must be"),
        (lambda: Ids(""), "name must not be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_no_records_are_a_batch_of_no_rows() -> None:
    batch = Parser("example", COLUMNS).parse([])
    assert batch.num_rows == 0
    assert [rows(batch, column.name) for column in COLUMNS] == [[]] * len(COLUMNS)


def test_many_threads_parse_with_one_parser() -> None:
    example = Example()
    example.named_feature.add(name="user").feature.fid_v2_list.value.extend([1, 2])
    records = [example.SerializeToString()] * 300
    parser = Parser("example", [Ids("user")])
    results: list[object] = []

    def work() -> None:
        results.extend(rows(parser.parse(records), "user") == [[1, 2]] * 300 for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_a_batch_moves_and_explains_what_it_has() -> None:
    batch = Parser("example", [Ids("user"), Label(), LineIdField("cid")]).parse([Example().SerializeToString()])
    moved = batch.to("cpu")
    assert list(moved) == ["user", "label", "cid"]
    assert len(moved) == 3
    assert repr(moved) == "Batch(1 rows: user, label, cid)"
    with pytest.raises(KeyError, match="no column 'item'; it has user, label, cid"):
        moved["item"]
    with pytest.raises(ValueError, match="column 'x' must have 2 rows, got 1"):
        Batch({"x": torch.zeros(1)}, num_rows=2)
