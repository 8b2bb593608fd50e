"""Samples keep what they hold on the way from one format to another."""

from __future__ import annotations

from typing import Any

import pytest

from data.parser_reference import rows_of
from monolith.data import INVALID_LABEL, Ids, Label, LineIdField, Parser, Weight
from monolith.data.conversions import (
    FeaturePruning,
    example_batch_of,
    example_of_instance,
    examples_of_batch,
    instance_of_example,
)
from monolith.data.protos.example_pb2 import Example, ExampleBatch, FeatureListType
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import DataLossError
from monolith.testing.serving_examples import generate_example_batch

FID_5, FID_7 = (5 << 54) | 11, (7 << 54) | 12


def instance() -> Instance:
    made = Instance(fid=[FID_7, FID_5, FID_7 + 1], value=[0.5], label=[1.0, 0.0], instance_weight=2.0)
    made.line_id.uid, made.line_id.req_time = 77, 1_700_000_000
    made.line_id.actions.extend([1, 2])
    made.data_source_key = 256
    made.feature.add(name="fc_user", fid=[1, (1 << 63) + 5])
    made.feature.add(name="fc_price", float_value=[0.25])
    made.feature.add(name="fc_count", int64_value=[-3])
    made.feature.add(name="fc_title", bytes_value=[b"x"])
    nested = made.feature.add(name="fc_history")
    nested.fid_list.add(value=[1, 2])
    nested.fid_list.add()
    return made


def test_an_instance_becomes_an_example() -> None:
    example = example_of_instance(instance())
    by_name = {named.name: named.feature for named in example.named_feature}
    assert list(by_name) == [
        "value",
        "fc_slot_7",
        "fc_slot_5",
        "fc_user",
        "fc_price",
        "fc_count",
        "fc_title",
        "fc_history",
    ]
    assert [named.id for named in example.named_feature] == list(range(8))
    assert list(by_name["fc_slot_7"].fid_v1_list.value) == [FID_7, FID_7 + 1]
    assert list(by_name["fc_user"].fid_v2_list.value) == [1, (1 << 63) + 5]
    assert [list(each.value) for each in by_name["fc_history"].fid_v2_lists.list] == [[1, 2], []]
    assert list(example.label) == [1.0, 0.0]
    assert (example.instance_weight, example.line_id.uid, example.data_source_key) == (2.0, 77, 256)
    assert example_of_instance(Instance()).instance_weight == 1.0


def test_the_way_back_gives_the_same_instance() -> None:
    back = instance_of_example(example_of_instance(instance()))
    wanted = instance()
    # Flat ids come back slot by slot, and the flat values as the feature they became.
    assert sorted(back.fid) == sorted(wanted.fid)
    del back.fid[:], wanted.fid[:]
    wanted.feature.insert(0, wanted.feature.add(name="value", float_value=[0.5]))
    del wanted.feature[-1], wanted.value[:]
    assert back == wanted


def test_typed_fields_of_an_example_are_not_lost() -> None:
    example = Example(label=[1.0], instance_weight=3.0)
    example.line_id.uid = 5
    example.named_feature.add(name="__LABEL__").feature.float_list.value.append(0.5)
    made = instance_of_example(example)
    assert (list(made.label), made.instance_weight, made.line_id.uid) == ([1.0, 0.5], 3.0, 5)


def test_reserved_features_fill_typed_fields() -> None:
    example = Example()
    example.named_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(
        instance().line_id.SerializeToString()
    )
    example.named_feature.add(name="instance_weight").feature.float_list.value.append(0.5)
    made = instance_of_example(example)
    assert made.line_id == instance().line_id
    assert made.instance_weight == 0.5
    assert not made.feature


def test_what_an_instance_cannot_hold_is_named() -> None:
    example = Example()
    example.named_feature.add(name="d").feature.double_list.value.append(1.0)
    example.named_raw_feature.add(name="raw")
    with pytest.raises(ValueError, match="no place for doubles, single values and raw features, such as raw, d"):
        instance_of_example(example)
    assert not instance_of_example(example, drop_what_does_not_fit=True).feature


def test_rows_of_a_batch_are_examples() -> None:
    batch = generate_example_batch(seed=3)
    assert list(examples_of_batch(batch)) == [with_ids(example, batch) for example in rows_of(batch)]


def with_ids(example: Example, batch: ExampleBatch) -> Example:
    numbers = {column.name: column.id for column in batch.named_feature_list}
    for named in example.named_feature:
        named.id = numbers[named.name]
    return example


def test_examples_round_trip_through_a_batch() -> None:
    examples = [example_of_instance(instance()) for _ in range(3)]
    examples[1].label[0] = 0.0
    del examples[2].named_feature[3]
    batch = example_batch_of(examples, shared=["value"])
    assert [len(c.feature) for c in batch.named_feature_list if c.type == FeatureListType.SHARED] == [1]
    back = list(examples_of_batch(batch))
    for wanted, got in zip(examples, back, strict=True):
        features = {named.name: named.feature for named in got.named_feature}
        for named in wanted.named_feature:
            assert features[named.name] == named.feature
        assert (list(got.label), got.instance_weight, got.line_id) == (
            list(wanted.label),
            wanted.instance_weight,
            wanted.line_id,
        )
    with pytest.raises(ValueError, match="'__LABEL__' cannot be shared: it differs"):
        example_batch_of(examples, shared=["__LABEL__"])
    twice = Example()
    twice.named_feature.add(name="a"), twice.named_feature.add(name="a")
    with pytest.raises(ValueError, match="'a' occurs twice in one Example"):
        example_batch_of([twice])
    assert example_batch_of([]).batch_size == 0


def test_all_formats_of_a_sample_parse_to_the_same_batch() -> None:
    """Label, weight, line id and ids are the same whichever message carries them."""
    columns = [Ids("fc_user"), Ids("fc_slot_7"), Label(width=2), Weight(), LineIdField("uid"), LineIdField("actions")]
    example = example_of_instance(instance())
    messages: dict[str, Any] = {
        "example": example,
        "example_batch": example_batch_of([example]),
        "instance": instance_of_example(example),
    }
    parsed = {kind: Parser(kind, columns).parse([message.SerializeToString()]) for kind, message in messages.items()}
    texts = {kind: str({name: batch[name] for name in batch}) for kind, batch in parsed.items()}
    assert texts["example"] == texts["example_batch"] == texts["instance"]
    rows = Parser("example", columns).parse(
        [row.SerializeToString() for row in examples_of_batch(messages["example_batch"])]
    )
    assert str({name: rows[name] for name in rows}) == texts["example"]


def test_batches_with_columns_of_a_wrong_length_are_named() -> None:
    batch = ExampleBatch(batch_size=2)
    batch.named_feature_list.add(name="a").feature.add()
    with pytest.raises(DataLossError, match="INDIVIDUAL column 'a' of an ExampleBatch must have 2 entries, got 1"):
        list(examples_of_batch(batch))
    batch.named_feature_list[0].type = FeatureListType.SHARED
    assert len(list(examples_of_batch(batch))) == 2
    batch.named_feature_list.add(name="b", type=FeatureListType.SHARED)
    with pytest.raises(DataLossError, match="SHARED column 'b' of an ExampleBatch must have an entry, got 0"):
        list(examples_of_batch(batch))


def test_pruning_drops_what_its_name_specifies() -> None:
    batch = ExampleBatch(batch_size=1)
    batch.named_feature_list.add(name="a").feature.add().float_list.value.append(1)
    batch.named_feature_list.add(name="__LABEL__").feature.add().float_list.value.append(1)
    batch.named_raw_feature_list.add(name="r").raw_feature.add().feature.add().int64_value = 3
    for pruning, features, raw in (
        (FeaturePruning.AS_IS, ["a"], ["r"]),
        (FeaturePruning.PRUNING_FEATURE, [], ["r"]),
        (FeaturePruning.PRUNING_RAW_FEATURE, ["a"], []),
    ):
        (example,) = examples_of_batch(batch, pruning)
        assert [named.name for named in example.named_feature] == features
        assert [named.name for named in example.named_raw_feature] == raw
        assert list(example.label) == [1.0]


def test_a_sample_without_label_has_none_in_any_format() -> None:
    batch = example_batch_of([Example()])
    label = Parser("example_batch", [Label()]).parse([batch.SerializeToString()])["label"]
    assert label.tolist() == [[INVALID_LABEL]]  # type: ignore[union-attr]
