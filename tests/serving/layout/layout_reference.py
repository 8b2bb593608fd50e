"""A layout written down plainly: dictionaries of rows, lists of ids, one float after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.data.protos.example_pb2 import FeatureListType, OutType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.data.protos.example_pb2 import Example, ExampleBatch, Feature, FeatureConfigs
    from monolith.export.layout_spec import FeatureSpec

Rows = dict[int, "NDArray[np.float32]"]
"""Id -> its row."""


class Asked(NamedTuple):
    """The ids of a feature for each example."""

    lists: list[list[int]]
    is_shared: bool = False


def v2_of(fid: int) -> int:
    """A v1 id as its v2 id."""
    return (fid & ((1 << 48) - 1)) | (fid >> 54) << 48


def ids_of(feature: Feature) -> list[int]:
    """As signed numbers; v1 ids become v2."""
    kind = feature.WhichOneof("type")
    if kind is None:
        return []
    values = [v2_of(each) if kind == "fid_v1_list" else each for each in getattr(feature, kind).value]
    return [each - (1 << 64) if each >= 1 << 63 else each for each in values]


def asked_by_batch(batch: ExampleBatch, names: Sequence[str]) -> dict[str, Asked]:
    """Of an ExampleBatch."""
    asked = {name: Asked([[] for _ in range(batch.batch_size)]) for name in names}
    for column in batch.named_feature_list:
        if column.name not in asked:
            continue
        lists = [ids_of(each) for each in column.feature]
        if column.type == FeatureListType.SHARED:
            asked[column.name] = Asked(lists[:1] * batch.batch_size, is_shared=True)
        else:
            asked[column.name] = Asked(lists)
    return asked


def asked_by_examples(examples: Sequence[Example], names: Sequence[str]) -> dict[str, Asked]:
    """Of Examples."""
    asked = {name: Asked([]) for name in names}
    for example in examples:
        found = {each.name: ids_of(each.feature) for each in example.named_feature}
        for name in names:
            asked[name].lists.append(found.get(name, []))
    return asked


def pooled(feature: FeatureSpec, ids: Sequence[int], rows: Rows) -> NDArray[np.float32]:
    """Of one example: [dim], or [L, dim] of a sequence. Float by float, in the order of the ids."""
    zeros = np.zeros(feature.dim, np.float32)
    taken = [rows.get(each, zeros) for each in ids if each != feature.padding_id]
    if feature.pooling == "firstn":
        length = feature.max_sequence_length
        return np.stack([*taken[:length], *[zeros] * (length - len(taken[:length]))])
    if not taken:
        return zeros
    total = taken[0].copy()
    for row in taken[1:]:
        total = total + row
    scale = {"mean": 1 / len(taken), "sqrtn": 1 / np.sqrt(len(taken))}.get(feature.pooling, 1.0)
    return total * np.float32(scale)


def laid_out(
    features: Sequence[FeatureSpec],
    configs: FeatureConfigs | None,
    asked: Mapping[str, Asked],
    rows: Mapping[str, Rows],
) -> dict[str, NDArray[np.float32]]:
    """Name of an output -> its array; `rows` by table."""
    of_features = {
        feature.name: np.stack(
            [pooled(feature, ids, rows[feature.table]) for ids in asked[feature.source].lists]
            or [np.zeros((0, *feature.shape), np.float32)]
        ).reshape(-1, *feature.shape)
        for feature in features
    }
    if configs is None:
        return of_features
    outputs: dict[str, NDArray[np.float32]] = {}
    for name, config in configs.out_configs.items():
        parts = [of_features[part.feature_name][..., part.start : part.end] for part in config.slice_configs]
        if config.out_type == OutType.NONE:
            outputs |= {f"{name}/{place}": part for place, part in enumerate(parts)}
        elif config.out_type == OutType.CONCAT:
            outputs[name] = np.concatenate(parts, axis=-1)
        elif config.out_type == OutType.STACK:
            outputs[name] = np.stack(parts, axis=1)
        else:
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            outputs[name] = total
    return outputs
