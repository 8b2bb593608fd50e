"""A small model's samples and embedding layout as messages, for tests of serving.

Three tables, six features of both id layouts, some shared by all rows of a request, one of them a sequence. Slices of a
row are: 0 the bias, 1 the vector, 2 the factorisation machine, 3 the vector of users only.

The generator of ByteDance Monolith printed its results and checked nothing. Its slices were off by one, its declared
shapes were wrong, one feature had the name of another, and the length of the sequence was missing; here names, slices,
shapes and lengths follow from the metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from monolith.data.protos.example_pb2 import (
    ExampleBatch,
    FeatureConfigs,
    FeatureListType,
    OutConfig,
    OutType,
    PoolingType,
)
from monolith.ids import SIGNATURE_BITS_V1, SIGNATURE_BITS_V2, pack_v1, pack_v2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCH_SIZE = 10
"""Rows of the batch."""


@dataclass(frozen=True, slots=True)
class TableMeta:
    """A table and the dims of the slices of its rows."""

    name: str
    slice_dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatMeta:
    """A feature: its slot, the layout of its ids, its table and how its rows are pooled."""

    name: str
    slot: int
    table: TableMeta
    max_sequence_length: int = 1
    id_layout: int = 1
    """1 or 2, as `monolith.ids` names them."""
    pooling: PoolingType = PoolingType.SUM
    list_type: FeatureListType = FeatureListType.INDIVIDUAL

    @property
    def is_sequence(self) -> bool:
        """Whether the model receives its ids one by one."""
        return self.pooling == PoolingType.FIRSTN


TABLES = (TableMeta("table1", (1, 4, 4, 8)), TableMeta("table2", (1, 4, 4)), TableMeta("table3", (8,)))
"""Tables of users, items and sequences."""

_SHARED = FeatureListType.SHARED
_USERS, _ITEMS, _SEQUENCES = TABLES
FEATURES: Mapping[str, FeatMeta] = {
    meta.name: meta
    for meta in (
        FeatMeta(name="f_user_id", slot=1, table=_USERS, list_type=_SHARED),
        FeatMeta(name="f_user_ctx_network", slot=61, table=_USERS, list_type=_SHARED),
        FeatMeta(
            name="f_user_test10_array",
            slot=549,
            table=_USERS,
            max_sequence_length=10,
            pooling=PoolingType.MEAN,
            list_type=_SHARED,
        ),
        FeatMeta(
            name="f_user_id-f_page",
            slot=504,
            table=_SEQUENCES,
            max_sequence_length=10,
            id_layout=2,
            pooling=PoolingType.FIRSTN,
            list_type=_SHARED,
        ),
        FeatMeta(name="f_goods_id", slot=200, table=_ITEMS),
        FeatMeta(name="f_page", slot=305, table=_ITEMS),
    )
}
"""Name -> feature."""


def generate_example_batch(
    features: Mapping[str, FeatMeta] = FEATURES, *, batch_size: int = BATCH_SIZE, seed: int = 0
) -> ExampleBatch:
    """Returns a batch of random ids; a SHARED list holds one entry, the others one for each row."""
    random = np.random.default_rng(seed)
    batch = ExampleBatch(batch_size=batch_size)
    for meta in features.values():
        column = batch.named_feature_list.add(name=meta.name, id=meta.slot, type=meta.list_type)
        for _ in range(1 if meta.list_type == FeatureListType.SHARED else batch_size):
            feature = column.feature.add()
            ids = feature.fid_v1_list if meta.id_layout == 1 else feature.fid_v2_list
            ids.value.extend(_random_id(meta, random) for _ in range(meta.max_sequence_length))
    return batch


def generate_feature_configs(
    features: Mapping[str, FeatMeta] = FEATURES, *, batch_size: int = BATCH_SIZE
) -> FeatureConfigs:
    """Returns the layout of the model: biases and vectors of all features, vectors of one side only, the sequence."""
    configs = FeatureConfigs()
    for name, meta in features.items():
        config = configs.feature_configs[name]
        config.table, config.pooling_type = meta.table.name, meta.pooling
        config.slice_dims.extend(meta.table.slice_dims)
        config.max_sequence_length = meta.max_sequence_length if meta.is_sequence else 0
    pooled = [meta for meta in features.values() if not meta.is_sequence]
    users = [meta for meta in pooled if "user" in meta.name]
    items = [meta for meta in pooled if "user" not in meta.name]
    alone = [meta for meta in users if len(meta.table.slice_dims) > 3]
    sequences = [meta for meta in features.values() if meta.is_sequence]
    for name, out_type, members, part in (
        ("bias", OutType.CONCAT, pooled, 0),
        ("vec", OutType.CONCAT, pooled, 1),
        ("uffm", OutType.NONE, users, 2),
        ("iffm", OutType.NONE, items, 2),
        ("seq", OutType.NONE, sequences, 0),
        ("user_only", OutType.STACK, alone, 3),
    ):
        _lay_out(configs.out_configs[name], out_type, members, part=part, batch_size=batch_size)
    return configs


def _random_id(meta: FeatMeta, random: np.random.Generator) -> int:
    bits, pack = (SIGNATURE_BITS_V1, pack_v1) if meta.id_layout == 1 else (SIGNATURE_BITS_V2, pack_v2)
    # Messages hold ids as unsigned integers.
    return pack(meta.slot, int(random.integers(1, 1 << bits))) % (1 << 64)


def _lay_out(out: OutConfig, out_type: OutType, members: Sequence[FeatMeta], *, part: int, batch_size: int) -> None:
    """Adds one slice for each feature, and the output shapes."""
    out.out_type = out_type
    dims = []
    for meta in members:
        ends = list(accumulate(meta.table.slice_dims))
        dims.append(meta.table.slice_dims[part])
        out.slice_configs.add(feature_name=meta.name, start=ends[part] - dims[-1], end=ends[part])
    if out_type == OutType.CONCAT:
        out.shape.add(dims=[batch_size, sum(dims)])
    elif out_type == OutType.STACK:
        out.shape.add(dims=[batch_size, len(dims), dims[0]])
    else:
        for meta, dim in zip(members, dims, strict=True):
            out.shape.add(dims=[batch_size, meta.max_sequence_length, dim] if meta.is_sequence else [batch_size, dim])
