"""What a batch of samples is, by protobuf's own messages and plain lists: written from the specification."""

from __future__ import annotations

from collections.abc import Sequence

from monolith.data.protos.example_pb2 import Example, ExampleBatch, Feature, FeatureListType
from monolith.data.protos.line_id_pb2 import LineId

INVALID = -3.4028234663852886e38
MASK_V2 = (1 << 48) - 1


def signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def v2_of_v1(number: int) -> int:
    return number & MASK_V2 | number >> 54 << 48


def ids_of(feature: Feature) -> list[int]:
    kind = feature.WhichOneof("type")
    if kind == "fid_v1_list":
        return [signed(v2_of_v1(number)) for number in feature.fid_v1_list.value]
    assert kind in {None, "fid_v2_list"}
    return [signed(number) for number in feature.fid_v2_list.value]


def floats_of(feature: Feature) -> list[float]:
    return list(feature.float_list.value)


def named(example: Example, name: str) -> list[Feature]:
    return [each.feature for each in example.named_feature if each.name == name]


def dense(values: Sequence[float], width: int, fill: float) -> list[float]:
    return [*values[:width], *[fill] * (width - len(values))]


def line_id_of(example: Example) -> LineId:
    columns = [feature for feature in named(example, "__LINE_ID__") if feature.bytes_list.value]
    return LineId.FromString(columns[0].bytes_list.value[0]) if columns else example.line_id


def label_of(example: Example) -> list[float]:
    return [*example.label, *(value for feature in named(example, "__LABEL__") for value in floats_of(feature))]


def weight_of(example: Example) -> float:
    columns = [value for feature in named(example, "instance_weight") for value in floats_of(feature)]
    weight = columns[0] if columns else example.instance_weight
    return weight if weight > 0 else 1.0


def rows_of(batch: ExampleBatch) -> list[Example]:
    """The batch row by row."""
    examples = []
    for row in range(batch.batch_size):
        example = Example()
        for column in batch.named_feature_list:
            is_shared = column.type == FeatureListType.SHARED
            example.named_feature.add(name=column.name, feature=column.feature[0 if is_shared else row])
        examples.append(example)
    return examples
