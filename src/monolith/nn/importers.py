"""Imports rows of modules that keep a weight for each index, such as `torch.nn.Embedding`, into slots of `Embeddings`.

A weight is read some megabytes at a time, so that it is never copied in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from monolith.errors import InvalidArgumentError
from monolith.nn.combiners import ReduceMean, ReduceSum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.nn.embeddings.embeddings import Embeddings

__all__ = ["import_collection", "import_embedding"]

_COMBINERS = {"sum": ReduceSum, "mean": ReduceMean}
_COLLECTIONS = (("embedding_bags", "embedding_bag_configs"), ("embeddings", "embedding_configs"))
"""Attributes of torchrec's two collections with the modules, and with the features that use them."""


def import_embedding(
    emb: Embeddings,
    slot: str,
    source: nn.Embedding | nn.EmbeddingBag | Tensor,
    *,
    ids: Tensor | None = None,
    time: int | None = None,
) -> int:
    """Makes each row of `source` the row of an id of a slot, as `Embeddings.assign` does.

    Args:
        emb: The module with the slot.
        slot: Name of the slot.
        source: A module, whose row at `padding_idx` is skipped, or a weight [n, dim].
        ids: int64 [n]: the id of each row; None: its index.
        time: As in `Embeddings.assign`.

    Returns:
        Number of rows.

    Raises:
        InvalidArgumentError: an `EmbeddingBag` that combines otherwise than the slot, or rows that do not fit it.

    >>> from monolith.nn import Embeddings, Slot
    >>> emb = Embeddings({"item": Slot(dim=2)})
    >>> import_embedding(emb, "item", torch.nn.Embedding(10, 2, padding_idx=0))
    9
    """
    weight = source if isinstance(source, Tensor) else source.weight
    if ids is None:
        ids = torch.arange(len(weight))
    elif ids.shape != weight.shape[:1]:
        raise InvalidArgumentError(
            f"slot {slot!r}: ids must be [{len(weight)}], one for each row of the weight, got {list(ids.shape)}"
        )
    if isinstance(source, nn.EmbeddingBag):
        _require_combiner(emb, slot, str(source.mode))
    if isinstance(source, Tensor) or source.padding_idx is None:
        return emb.assign(slot, ids, weight, time=time)
    if len(torch.unique(ids)) != len(ids):  # in two parts each would look good
        raise InvalidArgumentError(f"slot {slot!r}: each id must come once, got some more often")
    parts = slice(0, source.padding_idx), slice(source.padding_idx + 1, None)
    return sum(emb.assign(slot, ids[part], weight[part], time=time) for part in parts)


def import_collection(
    emb: Embeddings,
    collection: Any,
    *,
    slots: Mapping[str, str] | None = None,
    ids: Mapping[str, Tensor] | None = None,
    time: int | None = None,
) -> dict[str, int]:
    """Imports the tables of torchrec's `EmbeddingBagCollection` or `EmbeddingCollection`; not a sharded one.

    Features that use one table of the collection must be slots that share rows (`Slot(shares=...)`).

    Args:
        emb: The module with the slots.
        collection: An object with ``embedding_bags`` and ``embedding_bag_configs()``, or the same without bags.
        slots: Feature -> slot, where the names differ.
        ids: Table of the collection -> the id of each row; rows of other tables have their indices for ids.
        time: As in `Embeddings.assign`.

    Returns:
        Table of the collection -> number of rows.

    Raises:
        InvalidArgumentError: a feature without a slot, or whose slot has other rows, width or combiner; no row changed.
    """
    modules, configs = _parts_of(collection)
    found = {config.name: _slot_of(emb, config, slots or {}) for config in configs}
    for config in configs:
        if config.embedding_dim != emb.slots[found[config.name]].dim:
            raise InvalidArgumentError(
                f"slot {found[config.name]!r}: table {config.name!r} of the collection has dim {config.embedding_dim},"
                f" the slot {emb.slots[found[config.name]].dim}; define it with Slot(dim={config.embedding_dim})"
            )
    given = ids or {}
    return {
        config.name: import_embedding(
            emb, found[config.name], modules[config.name].weight, ids=given.get(config.name), time=time
        )
        for config in configs
    }


def _parts_of(collection: Any) -> tuple[Any, list[Any]]:
    for modules, configs in _COLLECTIONS:
        if hasattr(collection, modules) and hasattr(collection, configs):
            return getattr(collection, modules), list(getattr(collection, configs)())
    raise TypeError(
        "import_collection: expected torchrec's EmbeddingBagCollection or EmbeddingCollection, got"
        f" {type(collection).__name__}; take a single module by import_embedding"
    )


def _slot_of(emb: Embeddings, config: Any, slots: Mapping[str, str]) -> str:
    """Returns the slot of a table's features, all of which share its rows."""
    names = [slots.get(feature, feature) for feature in config.feature_names]
    for name in names:
        if name not in emb.slots:
            raise InvalidArgumentError(
                f"table {config.name!r} of the collection: its feature {name!r} is no slot, the slots are"
                f" {list(emb.slots)}; map it to a slot with slots={{{name!r}: ...}}"
            )
        if emb.placed[name].rows != emb.placed[names[0]].rows:
            raise InvalidArgumentError(
                f"table {config.name!r} of the collection: its features {names} have the same rows, but slots"
                f" {names[0]!r} and {name!r} do not; define {name!r} with Slot(shares={names[0]!r})"
            )
        pooling = getattr(config, "pooling", None)
        if pooling is not None:
            _require_combiner(emb, name, str(getattr(pooling, "value", pooling)).lower())
    return str(names[0])


def _require_combiner(emb: Embeddings, slot: str, mode: str) -> None:
    combiner = emb.slots[slot].combiner if slot in emb.slots else None
    if combiner is not None and (mode not in _COMBINERS or not isinstance(combiner, _COMBINERS[mode])):
        advice = f"define it with Slot(combiner={mode!r})" if mode in _COMBINERS else "no combiner does that"
        raise InvalidArgumentError(
            f"slot {slot!r}: it combines by {combiner}, the source by {mode!r}; {advice}, or pass only the weight"
        )
