"""Small stores and features for the tests of layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monolith.export.layout_spec import FeatureSpec
from monolith.tables import LocalStore, Segment, TableConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

KEYS: dict[str, Any] = {"id_layout": "any", "number": None, "wide_index": None}


def store_of(dims: Mapping[str, int], *, serving: bool = False, compressor: Any = None) -> LocalStore:
    """Empty tables."""
    segment = {} if compressor is None else {"compressor": compressor}
    return LocalStore(
        {name: TableConfig([Segment(dim, **segment)], name=name, serving=serving) for name, dim in dims.items()}
    )


def assign(store: LocalStore, table: str, ids: list[int], rows: NDArray[np.float32]) -> None:
    """Gives ids their rows."""
    number = store.native.number_of(table)
    store.native.core.assign(number, np.array(ids, np.int64), rows.reshape(-1), np.zeros(1, np.int64), False, 0, None)


def feature(name: str, table: str, dims: tuple[int, ...], **given: Any) -> FeatureSpec:
    """Whose ids are keys."""
    return FeatureSpec(name=name, store="rows", table=table, dims=dims, **{"pooling": "sum"} | KEYS | given)
