"""The stores of a run by name, as used in its log and its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.tables.store import Store

ONE_STORE = "model"


def named_stores(stores: Store | Mapping[str, Store]) -> dict[str, Store]:
    """Returns the stores by name.

    A single store is called ``model``, like that of a model that is itself an `Embeddings`.
    """
    return dict(stores) if isinstance(stores, Mapping) else {ONE_STORE: stores}
