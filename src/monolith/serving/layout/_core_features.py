"""Features for the core: the number of their table, and the bits that turn ids into keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.export.layout_spec import POOLINGS
from monolith.ids import SIGNATURE_BITS_V2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.export.layout_spec import FeatureSpec
    from monolith.tables import LocalStore

_ABOVE_SIGNATURE = (1 << 64) - (1 << SIGNATURE_BITS_V2)


def core_features(features: Sequence[FeatureSpec], stores: Mapping[str, LocalStore]) -> list[_core.InputFeature]:
    """Converts features, for groups in the order of the stores.

    Raises:
        InvalidArgumentError: two features have the same name, a store or table is missing or has rows of another dim,
            or the pooling is unknown.
    """
    names = [feature.name for feature in features]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"layout: there are two features {name!r}")
    return [_core_feature(feature, stores) for feature in features]


def _core_feature(feature: FeatureSpec, stores: Mapping[str, LocalStore]) -> _core.InputFeature:
    subject = f"feature {feature.name!r}"
    if feature.store not in stores:
        raise InvalidArgumentError(f"{subject}: no store {feature.store!r}; there are {', '.join(stores) or 'none'}")
    native = stores[feature.store].native
    table = native.number_of(feature.table)
    if native.dims[table] != feature.dim:
        raise InvalidArgumentError(
            f"{subject}: slices of {list(feature.dims)} are {feature.dim} floats,"
            f" rows of table {feature.table!r} have {native.dims[table]}"
        )
    if feature.pooling not in POOLINGS:
        raise InvalidArgumentError(f"{subject}: pooling must be one of {', '.join(POOLINGS)}, got {feature.pooling!r}")
    if feature.pooling == "firstn" and feature.max_sequence_length < 1:
        raise InvalidArgumentError(
            f"{subject}: firstn needs a max_sequence_length >= 1, got {feature.max_sequence_length}"
        )
    return _core.InputFeature(
        name=feature.name,
        column=feature.source,
        group=list(stores).index(feature.store),
        table=table,
        dim=feature.dim,
        pooling=POOLINGS.index(feature.pooling),
        places=feature.max_sequence_length if feature.pooling == "firstn" else 0,
        bits=key_bits(feature),
        padding=feature.padding_id,
    )


def key_bits(feature: FeatureSpec) -> tuple[int, int, int, int]:
    """Returns four masks: upper key bits taken from the id, set, and forbidden in the id, and the bits of wide keys."""
    given = (feature.number or 0) << SIGNATURE_BITS_V2
    carried = given if feature.id_layout == "v2" else 0
    forbidden = 0 if feature.number is None else _ABOVE_SIGNATURE
    wide = 0 if feature.wide_index is None else 1 << 63 | feature.wide_index << 54
    return carried, given, forbidden, wide
