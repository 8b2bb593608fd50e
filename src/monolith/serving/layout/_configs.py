"""Features as described by the messages of ByteDance Monolith."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from monolith.data.protos.example_pb2 import PoolingType
from monolith.errors import InvalidArgumentError
from monolith.export.layout_spec import FeatureSpec, PoolingName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monolith.data.protos.example_pb2 import FeatureConfig, FeatureConfigs
    from monolith.tables import LocalStore

_POOLING: dict[int, PoolingName] = {
    PoolingType.SUM: "sum",
    PoolingType.MEAN: "mean",
    PoolingType.FIRSTN: "firstn",
}


def features_of_configs(configs: FeatureConfigs, stores: Mapping[str, LocalStore]) -> list[FeatureSpec]:
    """Returns the features in the order of their names; ids are used as keys unchanged."""
    return [_feature(name, configs.feature_configs[name], stores) for name in sorted(configs.feature_configs)]


def slice_name(name: str, features: Iterable[str]) -> str:
    """Returns the upstream name of the layout of one slice of features.

    >>> slice_name("bias", ["user", "item"])
    'bias_4a67a0256dacbca594916cce369e6d13'
    """
    joined = ",".join(sorted(features))
    return f"{name}_{hashlib.md5(joined.encode(), usedforsecurity=False).hexdigest()}"


def _feature(name: str, config: FeatureConfig, stores: Mapping[str, LocalStore]) -> FeatureSpec:
    having = [store for store, rows in stores.items() if config.table in rows.native.names]
    if len(having) != 1:
        told = f"stores {', '.join(having)} have" if having else "no store has"
        raise InvalidArgumentError(f"feature {name!r}: {told} a table {config.table!r}, one is expected")
    if config.pooling_type not in _POOLING:
        raise InvalidArgumentError(f"feature {name!r}: pooling_type must be SUM, MEAN or FIRSTN")
    return FeatureSpec(
        name=name,
        store=having[0],
        table=config.table,
        dims=tuple(config.slice_dims),
        pooling=_POOLING[config.pooling_type],
        max_sequence_length=config.max_sequence_length,
        id_layout="any",
        number=None,
        wide_index=None,
    )
