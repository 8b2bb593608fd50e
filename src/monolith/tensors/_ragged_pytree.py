"""Makes `Ragged` known to torch: as a pytree of its two parts, and as a class that is safe to load.

A tree of batches can then be mapped, moved, exported and passed to compiled functions like a tree of tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.serialization
from torch.utils import _pytree as pytree

from monolith.tensors.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable


def register() -> None:
    """Registers `Ragged` as a pytree node. Called once, when the package is imported."""
    pytree.register_pytree_node(
        Ragged,
        _flatten,
        _unflatten,
        serialized_type_name="monolith.tensors.Ragged",
        flatten_with_keys_fn=_flatten_with_keys,
    )
    torch.serialization.add_safe_globals([Ragged])


def _flatten(ragged: Ragged) -> tuple[list[Any], None]:
    return [ragged.values, ragged.row_splits], None


def _flatten_with_keys(ragged: Ragged) -> tuple[list[tuple[Any, Any]], None]:
    keys = (pytree.GetAttrKey("values"), pytree.GetAttrKey("row_splits"))
    return list(zip(keys, _flatten(ragged)[0], strict=True)), None


def _unflatten(parts: Iterable[Any], _: None) -> Ragged:
    values, row_splits = parts
    return Ragged(values, row_splits, validate=False)
