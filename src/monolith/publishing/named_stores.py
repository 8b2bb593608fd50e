"""The stores of a run by name, as its log and its checkpoints know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.tables.store import Store

ONE_STORE = "model"


def named_stores(stores: Store | Mapping[str, Store]) -> dict[str, Store]:
    """One store is called ``model``, as that of a model that is an `Embeddings` itself."""
    return dict(stores) if isinstance(stores, Mapping) else {ONE_STORE: stores}
