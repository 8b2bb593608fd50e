"""Messages of every format: which one some bytes are, and all of them as `Example`, which the commands work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from monolith import ids
from monolith.data.protos.example_pb2 import Example, ExampleBatch, FeatureListType
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.data.sample_format import SampleFormat
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

LABEL, LINE_ID, WEIGHT = "__LABEL__", "__LINE_ID__", "instance_weight"
"""Features that stand for typed fields."""

_MESSAGES: dict[SampleFormat, type[Message]] = {
    SampleFormat.EXAMPLE: Example,
    SampleFormat.EXAMPLE_BATCH: ExampleBatch,
    SampleFormat.INSTANCE: Instance,
    SampleFormat.TF_EXAMPLE: TfExample,
}


def fits(payload: bytes, sample: SampleFormat) -> bool:
    """Whether these bytes are a message of this format, and of no other: no field is unknown, no feature nameless."""
    if sample is SampleFormat.PLAINTEXT:
        return True
    try:
        message = _MESSAGES[sample].FromString(payload)
    except DecodeError:
        return False
    return bool(payload) and not len(UnknownFieldSet(message)) and _has_names(message, sample)


def _has_names(message: Any, sample: SampleFormat) -> bool:
    if sample is SampleFormat.EXAMPLE:
        return all(each.name and each.feature.WhichOneof("type") for each in message.named_feature)
    if sample is SampleFormat.EXAMPLE_BATCH:
        return bool(message.batch_size > 0) and all(each.name for each in message.named_feature_list)
    if sample is SampleFormat.TF_EXAMPLE:
        return bool(message.features.feature) and all(
            name and each.WhichOneof("kind") for name, each in message.features.feature.items()
        )
    return all(each.name for each in message.feature)


def examples_of(payload: bytes, sample: SampleFormat) -> Iterator[Example]:
    """The samples of a record as Examples.

    Raises:
        DataLossError: it is no such message.
    """
    try:
        yield from _CONVERSIONS[sample](_MESSAGES[sample].FromString(payload))
    except DecodeError as error:
        raise DataLossError(f"not a message of format {sample.name}: {error}") from error


def _same(example: Any) -> Iterator[Example]:
    """Features that stand for typed fields go there."""
    kept = []
    for each in example.named_feature:
        if each.name == LABEL:
            example.label.extend(each.feature.float_list.value)
        elif each.name == LINE_ID and each.feature.bytes_list.value:
            example.line_id.MergeFromString(each.feature.bytes_list.value[0])
        elif each.name == WEIGHT and each.feature.float_list.value:
            example.instance_weight = each.feature.float_list.value[0]
        else:
            kept.append(each)
    if len(kept) < len(example.named_feature):
        copies = [type(each).FromString(each.SerializeToString()) for each in kept]
        del example.named_feature[:]
        example.named_feature.extend(copies)
    yield example


def _rows(batch: Any) -> Iterator[Example]:
    """A SHARED column stands in every row."""
    for column in batch.named_feature_list:
        expected = 1 if column.type == FeatureListType.SHARED else batch.batch_size
        if len(column.feature) != expected:
            raise DataLossError(
                f"ExampleBatch: column {column.name!r} has {len(column.feature)} entries, expected {expected}"
            )
    for row in range(batch.batch_size):
        example = Example(data_source_key=batch.data_source_key)
        for column in batch.named_feature_list:
            feature = column.feature[0 if column.type == FeatureListType.SHARED else row]
            if feature.WhichOneof("type"):
                example.named_feature.add(name=column.name, id=column.id).feature.CopyFrom(feature)
        yield from _same(example)


_INSTANCE_FIELDS = {
    "fid": "fid_v2_list",
    "float_value": "float_list",
    "int64_value": "int64_list",
    "bytes_value": "bytes_list",
    "fid_list": "fid_v2_lists",
    "float_list": "float_lists",
    "int64_list": "int64_lists",
    "bytes_list": "bytes_lists",
}


def _of_instance(instance: Any) -> Iterator[Example]:
    """Flat ids by v1 slot as ``fc_slot_<slot>``, then named features, by their first member that holds something."""
    example = Example(label=instance.label, data_source_key=instance.data_source_key)
    example.instance_weight = instance.instance_weight or 1.0
    if instance.HasField("line_id"):
        example.line_id.MergeFromString(instance.line_id.SerializeToString())
    by_slot: dict[int, list[int]] = {}
    for fid in instance.fid:
        by_slot.setdefault(fid >> ids.SIGNATURE_BITS_V1, []).append(fid)
    for slot, values in by_slot.items():
        named = example.named_feature.add(name=f"fc_slot_{slot}", id=len(example.named_feature))
        named.feature.fid_v1_list.value.extend(values)
    if instance.value:
        named = example.named_feature.add(name="value", id=len(example.named_feature))
        named.feature.float_list.value.extend(instance.value)
    for feature in instance.feature:
        field = next((name for name in _INSTANCE_FIELDS if getattr(feature, name)), None)
        if field is None:
            continue
        named = example.named_feature.add(name=feature.name, id=len(example.named_feature))
        target = getattr(named.feature, _INSTANCE_FIELDS[field])
        if field.endswith("_list"):
            for each in getattr(feature, field):
                target.list.add(value=each.value)
        else:
            target.value.extend(getattr(feature, field))
    yield example


def _of_tf_example(message: Any) -> Iterator[Example]:
    """Lists by name; ``label`` goes where labels are."""
    example = Example()
    for name in sorted(message.features.feature):
        feature = message.features.feature[name]
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        values = getattr(feature, kind).value
        if name == "label" and kind != "bytes_list":
            example.label.extend(values)
        else:
            target = example.named_feature.add(name=name, id=len(example.named_feature)).feature
            getattr(target, kind).value.extend(values)
    yield example


_CONVERSIONS: dict[SampleFormat, Callable[[Any], Iterator[Example]]] = {
    SampleFormat.EXAMPLE: _same,
    SampleFormat.EXAMPLE_BATCH: _rows,
    SampleFormat.INSTANCE: _of_instance,
    SampleFormat.TF_EXAMPLE: _of_tf_example,
}
