"""Samples of one format as samples of another, message by message.

Nothing that the other format can hold is lost: where the original dropped the typed fields of an Example on the way to
an Instance, they are copied here. What cannot be held is refused by name, unless it is asked to be left out.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

from monolith.data.protos.example_pb2 import Example, ExampleBatch, Feature, FeatureListType
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.line_id_pb2 import LineId
from monolith.errors import DataLossError
from monolith.ids import NUM_SLOTS_V2, pack_v2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from google.protobuf.message import Message

    from monolith.data.protos.example_pb2 import NamedFeature, NamedFeatureList, NamedRawFeatureList
    from monolith.data.protos.label_config_pb2 import TFRecordFeatureDescription
    from monolith.data.protos.line_id_pb2 import Feature as InstanceFeature
    from monolith.data.protos.tf_example_pb2 import Example as TfExample

__all__ = [
    "LABEL_FEATURE",
    "LINE_ID_FEATURE",
    "WEIGHT_FEATURE",
    "FeaturePruning",
    "example_batch_of",
    "example_of_instance",
    "example_of_tf_example",
    "examples_of_batch",
    "instance_of_example",
]

LINE_ID_FEATURE, LABEL_FEATURE, WEIGHT_FEATURE = "__LINE_ID__", "__LABEL__", "instance_weight"
"""Features that carry what typed fields carry, where a format has none."""

_RESERVED = frozenset({LINE_ID_FEATURE, LABEL_FEATURE, WEIGHT_FEATURE})
_SIGNATURE_V1_BITS = 54


class FeaturePruning(enum.Enum):
    """What is left out of a sample; the numbers are the original's."""

    AS_IS = 0
    """Nothing."""
    PRUNING_FEATURE = 1
    """Named features, but for the reserved ones."""
    PRUNING_RAW_FEATURE = 2
    """Raw features: values before hashing."""


def example_of_instance(instance: Instance) -> Example:
    """An Instance as an Example: flat ids by their slot as ``fc_slot_<slot>``, features under their names.

    Of a feature with several kinds of values the first in the order of its fields counts.
    """
    example = Example(line_id=instance.line_id, label=instance.label, data_source_key=instance.data_source_key)
    example.instance_weight = instance.instance_weight if instance.HasField("instance_weight") else 1.0
    if instance.value:
        _add(example, "value").float_list.value.extend(instance.value)
    by_slot: dict[int, list[int]] = {}
    for number in instance.fid:
        by_slot.setdefault(number >> _SIGNATURE_V1_BITS, []).append(number)
    for slot, numbers in by_slot.items():
        _add(example, f"fc_slot_{slot}").fid_v1_list.value.extend(numbers)
    for feature in instance.feature:
        _copy_instance_feature(feature, _add(example, feature.name))
    return example


def instance_of_example(example: Example, *, drop_what_does_not_fit: bool = False) -> Instance:
    """An Example as an Instance: v1 ids flat, everything else as features; reserved features go to typed fields.

    Args:
        example: The sample.
        drop_what_does_not_fit: Leaves out doubles, single values and raw features, which an Instance has no place for.

    Raises:
        ValueError: there are such features, and they are not to be left out.
    """
    instance = Instance(label=example.label)
    if example.HasField("line_id"):
        instance.line_id.CopyFrom(example.line_id)
    if example.instance_weight:
        instance.instance_weight = example.instance_weight
    if example.data_source_key:
        instance.data_source_key = example.data_source_key
    lost = [raw.name for raw in example.named_raw_feature]
    for named in example.named_feature:
        kind = named.feature.WhichOneof("type")
        if named.name in _RESERVED:
            _read_reserved(named.name, named.feature, instance)
        elif kind == "fid_v1_list":
            instance.fid.extend(named.feature.fid_v1_list.value)
        elif kind in _INSTANCE_FIELDS:
            _copy_to_instance(named, kind, instance)
        elif kind is not None:
            lost.append(named.name)
    if lost and not drop_what_does_not_fit:
        names = ", ".join(lost[:5])
        raise ValueError(f"an Instance has no place for doubles, single values and raw features, such as {names}")
    return instance


def examples_of_batch(
    batch: ExampleBatch, pruning: FeaturePruning = FeaturePruning.PRUNING_RAW_FEATURE
) -> Iterator[Example]:
    """The rows of an ExampleBatch as Examples. Reserved columns become the typed fields.

    Raises:
        DataLossError: a column whose length is not that of the batch, or a shared one without an entry.
    """
    for column in batch.named_feature_list:
        _check_entries(column, len(column.feature), batch.batch_size)
    for raw_column in batch.named_raw_feature_list:
        _check_entries(raw_column, len(raw_column.raw_feature), batch.batch_size)
    for row in range(batch.batch_size):
        yield _row_of(batch, row, pruning)


def example_batch_of(examples: Sequence[Example], *, shared: Iterable[str] = ()) -> ExampleBatch:
    """Examples as one ExampleBatch, column by column; typed fields become reserved columns.

    A feature that an Example lacks is an empty entry. A name that occurs several times in one Example is refused.

    Args:
        examples: The rows.
        shared: Features that are the same in all rows, stored once.

    Raises:
        ValueError: a shared feature that differs between rows, or a name that occurs twice in a row.
    """
    rows = [_columns_of(example) for example in examples]
    batch = ExampleBatch(batch_size=len(rows))
    shared = set(shared)
    names: dict[str, int] = {}
    for features in rows:
        for name, (_, number) in features.items():
            names.setdefault(name, number)
    for name, number in names.items():
        entries = [features[name][0] if name in features else Feature() for features in rows]
        column = batch.named_feature_list.add(name=name, id=number)
        if name in shared:
            if any(entry != entries[0] for entry in entries):
                raise ValueError(f"feature {name!r} cannot be shared: it differs between the rows")
            column.type, entries = FeatureListType.SHARED, entries[:1]
        column.feature.extend(entries)
    return batch


def example_of_tf_example(sample: TfExample, description: TFRecordFeatureDescription) -> Example:
    """A ``tf.train.Example`` as an Example, by a description of which features are ids of which slot, and which dense.

    An integer v becomes the id v2(slot, v), a real number x v2(slot, floor(log2(|x| + 1))).

    Raises:
        ValueError: the description has a slot twice or outside [1, 32768), or a name both ways; or a feature of texts
            is to become ids.
    """
    check_description(description)
    example = Example(instance_weight=1.0)
    for name, feature in sorted(sample.features.feature.items()):
        if name == description.label and name:
            example.label.extend(feature.float_list.value or map(float, feature.int64_list.value))
        elif name == description.instance_weight and name:
            example.instance_weight = [*feature.float_list.value, *map(float, feature.int64_list.value), 1.0][0]
        elif name in description.sparse_features:
            ids = _ids_of(name, feature, description.sparse_features[name])
            _add(example, name).fid_v2_list.value.extend(ids)
        elif name in description.dense_features:
            target = _add(example, name)
            for kind in ("float_list", "int64_list", "bytes_list"):
                if feature.WhichOneof("kind") == kind:
                    getattr(target, kind).value.extend(getattr(feature, kind).value)
    return example


def check_description(description: TFRecordFeatureDescription) -> None:
    """Refuses a description by which features could not be told apart."""
    slots: Mapping[str, int] = description.sparse_features
    if bad := {name: slot for name, slot in slots.items() if not 1 <= slot < NUM_SLOTS_V2}:
        raise ValueError(f"slots must be from 1 to {NUM_SLOTS_V2 - 1}, got {bad}")
    if len(set(slots.values())) != len(slots):
        raise ValueError(f"every feature needs a slot of its own, got {dict(slots)}")
    if both := set(slots) & set(description.dense_features):
        raise ValueError(f"features cannot be both ids and dense: {', '.join(sorted(both))}")


_INSTANCE_FIELDS = {
    "fid_v2_list": "fid",
    "float_list": "float_value",
    "int64_list": "int64_value",
    "bytes_list": "bytes_value",
    "fid_v1_lists": "fid_list",
    "fid_v2_lists": "fid_list",
    "float_lists": "float_list",
    "int64_lists": "int64_list",
    "bytes_lists": "bytes_list",
}
_FLAT_FIELDS = {
    "fid": "fid_v2_list",
    "float_value": "float_list",
    "int64_value": "int64_list",
    "bytes_value": "bytes_list",
}
_NESTED_FIELDS = {
    "fid_list": "fid_v2_lists",
    "float_list": "float_lists",
    "int64_list": "int64_lists",
    "bytes_list": "bytes_lists",
}


def _add(example: Example, name: str) -> Feature:
    """A new feature; ids count up in order of creation."""
    return example.named_feature.add(name=name, id=len(example.named_feature)).feature


def _copy_instance_feature(source: InstanceFeature, target: Feature) -> None:
    for field, kind in _FLAT_FIELDS.items():
        if values := getattr(source, field):
            getattr(target, kind).value.extend(values)
            return
    for field, kind in _NESTED_FIELDS.items():
        if lists := getattr(source, field):
            for each in lists:
                getattr(target, kind).list.add().value.extend(each.value)
            return


def _copy_to_instance(named: NamedFeature, kind: str, instance: Instance) -> None:
    target = instance.feature.add(name=named.name)
    field = _INSTANCE_FIELDS[kind]
    source: Message = getattr(named.feature, kind)
    if kind.endswith("lists"):
        for each in source.list:  # type: ignore[attr-defined]
            getattr(target, field).add().value.extend(each.value)
    else:
        getattr(target, field).extend(source.value)  # type: ignore[attr-defined]


def _read_reserved(name: str, feature: Feature, sample: Example | Instance) -> None:
    if name == LINE_ID_FEATURE and feature.bytes_list.value:
        sample.line_id.CopyFrom(LineId.FromString(feature.bytes_list.value[0]))
    elif name == LABEL_FEATURE:
        sample.label.extend(feature.float_list.value)
    elif name == WEIGHT_FEATURE and feature.float_list.value:
        sample.instance_weight = feature.float_list.value[0]


def _check_entries(column: NamedFeatureList | NamedRawFeatureList, entries: int, batch_size: int) -> None:
    is_shared = column.type == FeatureListType.SHARED
    if entries < 1 if is_shared else entries != batch_size:
        expected = "an entry" if is_shared else f"{batch_size} entries"
        kind = FeatureListType.Name(column.type)
        raise DataLossError(f"{kind} column {column.name!r} of an ExampleBatch must have {expected}, got {entries}")


def _row_of(batch: ExampleBatch, row: int, pruning: FeaturePruning) -> Example:
    example = Example(data_source_key=batch.data_source_key)
    for column in batch.named_feature_list:
        if pruning is FeaturePruning.PRUNING_FEATURE and column.name not in _RESERVED:
            continue
        entry = column.feature[0 if column.type == FeatureListType.SHARED else row]
        if column.name in _RESERVED:
            _read_reserved(column.name, entry, example)
        else:
            example.named_feature.add(name=column.name, id=column.id, feature=entry)
    if pruning is not FeaturePruning.PRUNING_RAW_FEATURE:
        for raw in batch.named_raw_feature_list:
            value = raw.raw_feature[0 if raw.type == FeatureListType.SHARED else row]
            example.named_raw_feature.add(name=raw.name, id=raw.id, raw_feature=value)
    return example


def _columns_of(example: Example) -> dict[str, tuple[Feature, int]]:
    """Name to feature and number; typed fields under their reserved names, unless the features are there."""
    columns: dict[str, tuple[Feature, int]] = {}
    for named in example.named_feature:
        if named.name in columns:
            raise ValueError(f"feature {named.name!r} occurs twice in one Example; a column has one entry for each row")
        columns[named.name] = (named.feature, named.id)
    if LINE_ID_FEATURE not in columns and example.HasField("line_id"):
        data = example.line_id.SerializeToString()
        columns[LINE_ID_FEATURE] = (Feature(bytes_list={"value": [data]}), 0)
    if LABEL_FEATURE not in columns and example.label:
        columns[LABEL_FEATURE] = (Feature(float_list={"value": example.label}), 0)
    if WEIGHT_FEATURE not in columns and example.instance_weight:
        columns[WEIGHT_FEATURE] = (Feature(float_list={"value": [example.instance_weight]}), 0)
    return columns


def _ids_of(name: str, feature: Message, slot: int) -> list[int]:
    kind = feature.WhichOneof("kind")
    if kind == "bytes_list":
        raise ValueError(f"feature {name!r} has texts, which cannot become ids; hash them first, or read them as dense")
    if kind == "float_list":
        reals: Sequence[float] = feature.float_list.value  # type: ignore[attr-defined]
        if not all(map(math.isfinite, reals)):
            raise ValueError(f"feature {name!r} must have finite numbers to become ids, got {list(reals)}")
        values = [math.floor(math.log2(abs(value) + 1)) for value in reals]
    else:
        values = list(feature.int64_list.value)  # type: ignore[attr-defined]
    return [pack_v2(slot, value) for value in values]
