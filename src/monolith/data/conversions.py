"""Conversions of samples from one format to another, message by message.

Nothing that the other format can represent is lost: typed fields of an Example are copied to an Instance, although
ByteDance Monolith dropped them. What cannot be represented is refused by name, unless the caller allows to drop it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from monolith.data.protos.example_pb2 import Example, ExampleBatch, Feature, FeatureListType, RawFeature
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.line_id_pb2 import LineId
from monolith.errors import DataLossError
from monolith.ids import v1_to_v2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from google.protobuf.message import Message

    from monolith.data.protos.example_pb2 import NamedFeature, NamedFeatureList, NamedRawFeatureList
    from monolith.data.protos.line_id_pb2 import Feature as InstanceFeature

LINE_ID_FEATURE, LABEL_FEATURE, WEIGHT_FEATURE = "__LINE_ID__", "__LABEL__", "instance_weight"
"""Features that carry what typed fields carry, where a format has none."""

_RESERVED = frozenset({LINE_ID_FEATURE, LABEL_FEATURE, WEIGHT_FEATURE})
_SIGNATURE_V1_BITS = 54


class FeaturePruning(enum.Enum):
    """What is removed from a sample; the values are those of ByteDance Monolith."""

    AS_IS = 0
    """Nothing."""
    PRUNING_FEATURE = 1
    """Named features, but for the reserved ones."""
    PRUNING_RAW_FEATURE = 2
    """Raw features: values before hashing."""


def with_typed_fields(example: Example) -> Example:
    """Returns the Example with its reserved features moved to their typed fields."""
    if not any(named.name in _RESERVED for named in example.named_feature):
        return example
    converted = Example()
    converted.CopyFrom(example)
    del converted.named_feature[:]
    for named in example.named_feature:
        if named.name in _RESERVED:
            _read_reserved(named.name, named.feature, converted)
        else:
            converted.named_feature.add().CopyFrom(named)
    return converted


def example_of_instance(instance: Instance) -> Example:
    """Converts an Instance to an Example: flat ids by slot as ``fc_slot_<slot>``, features under their names.

    Of a feature with several kinds of values the first in the order of its fields is used; empty features are skipped.
    As upstream, an Example cannot hold `label_tag`, `next_fid` and `dense`.
    """
    example = Example(label=instance.label, data_source_key=instance.data_source_key)
    if instance.HasField("line_id"):
        example.line_id.CopyFrom(instance.line_id)
    example.instance_weight = instance.instance_weight if instance.HasField("instance_weight") else 1.0
    if instance.value:
        add_feature(example, "value").float_list.value.extend(instance.value)
    by_slot: dict[int, list[int]] = {}
    for number in instance.fid:
        by_slot.setdefault(number >> _SIGNATURE_V1_BITS, []).append(number)
    for slot, numbers in by_slot.items():
        add_feature(example, f"fc_slot_{slot}").fid_v1_list.value.extend(numbers)
    for feature in instance.feature:
        _copy_instance_feature(feature, example)
    return example


def instance_of_example(example: Example, *, drop_what_does_not_fit: bool = False) -> Instance:
    """Converts an Example to an Instance: v1 ids flat, the rest as features; reserved features become typed fields.

    Flat ids have no name: converted back they are ``fc_slot_<slot>``. Nested v1 ids become v2 ids.

    Args:
        example: The sample.
        drop_what_does_not_fit: Drops doubles, single values and raw features, which an Instance cannot hold.

    Raises:
        ValueError: there are such features, and they may not be dropped.
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
    """Yields the rows of an ExampleBatch as Examples. Reserved columns become the typed fields.

    Raises:
        DataLossError: a column does not have the length of the batch, or a shared one has no entry.
    """
    for column in batch.named_feature_list:
        _check_entries(column, len(column.feature), batch.batch_size)
    for raw_column in batch.named_raw_feature_list:
        _check_entries(raw_column, len(raw_column.raw_feature), batch.batch_size)
    for row in range(batch.batch_size):
        yield _row_of(batch, row, pruning)


def example_batch_of(examples: Sequence[Example], *, shared: Iterable[str] = ()) -> ExampleBatch:
    """Converts Examples to one ExampleBatch, column by column; typed fields become reserved columns.

    A feature that an Example lacks is an empty entry, which `examples_of_batch` skips.

    Args:
        examples: The rows.
        shared: Features that are the same in all rows, stored once.

    Raises:
        ValueError: a shared feature that differs between rows, a name that occurs twice in a row, or rows of several
            data sources.
    """
    rows = [_columns_of(example) for example in examples]
    keys = {example.data_source_key for example in examples}
    if len(keys) > 1:
        got = ", ".join(map(str, sorted(keys)))
        raise ValueError(f"an ExampleBatch has one data source, got rows of the keys {got}")
    batch = ExampleBatch(batch_size=len(rows), data_source_key=max(keys, default=0))
    _add_raw_columns(examples, batch)
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
_INSTANCE_FIELDS = {"fid_v1_lists": "fid_list"} | {
    kind: field for fields in (_FLAT_FIELDS, _NESTED_FIELDS) for field, kind in fields.items()
}


def signed(number: int) -> int:
    """Returns the signed reading of the 64 bits of an unsigned number."""
    return number - (1 << 64) if number >= 1 << 63 else number


def add_feature(example: Example, name: str) -> Feature:
    """Adds a feature; feature ids count up in order of creation."""
    return example.named_feature.add(name=name, id=len(example.named_feature)).feature


def _copy_instance_feature(source: InstanceFeature, example: Example) -> None:
    for field, kind in _FLAT_FIELDS.items():
        if values := getattr(source, field):
            getattr(add_feature(example, source.name), kind).value.extend(values)
            return
    for field, kind in _NESTED_FIELDS.items():
        if lists := getattr(source, field):
            target = getattr(add_feature(example, source.name), kind)
            for row in lists:
                target.list.add().value.extend(row.value)
            return


def _copy_to_instance(named: NamedFeature, kind: str, instance: Instance) -> None:
    target = instance.feature.add(name=named.name)
    field = _INSTANCE_FIELDS[kind]
    source: Message = getattr(named.feature, kind)
    if kind.endswith("lists"):
        for row in source.list:  # type: ignore[attr-defined]
            # Nested ids of an Instance are always v2 ids.
            values = [v1_to_v2(number) % (1 << 64) for number in row.value] if kind == "fid_v1_lists" else row.value
            getattr(target, field).add().value.extend(values)
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
        elif entry.WhichOneof("type"):
            example.named_feature.add(name=column.name, id=column.id, feature=entry)
    if pruning is not FeaturePruning.PRUNING_RAW_FEATURE:
        for raw in batch.named_raw_feature_list:
            value = raw.raw_feature[0 if raw.type == FeatureListType.SHARED else row]
            if value.feature:
                example.named_raw_feature.add(name=raw.name, id=raw.id, raw_feature=value)
    return example


def _add_raw_columns(examples: Sequence[Example], batch: ExampleBatch) -> None:
    columns: dict[str, NamedRawFeatureList] = {}
    for row, example in enumerate(examples):
        for named in example.named_raw_feature:
            if named.name not in columns:
                columns[named.name] = batch.named_raw_feature_list.add(name=named.name, id=named.id)
            column = columns[named.name].raw_feature
            if len(column) > row:
                twice = f"raw feature {named.name!r} occurs twice in one Example"
                raise ValueError(f"{twice}; a column has one entry a row")
            column.extend([RawFeature()] * (row - len(column)))
            column.append(named.raw_feature)
    for filled in columns.values():
        filled.raw_feature.extend([RawFeature()] * (len(examples) - len(filled.raw_feature)))


def _columns_of(example: Example) -> dict[str, tuple[Feature, int]]:
    """Returns name -> feature and number; typed fields under their reserved names, unless such features exist."""
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
