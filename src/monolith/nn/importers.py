"""Imports rows trained elsewhere: modules with a weight per index (torch, torchrec), table dumps of ByteDance Monolith.

A weight is read some megabytes at a time, so that it is never copied in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from monolith.errors import InvalidArgumentError
from monolith.nn.combiners import ReduceMean, ReduceSum
from monolith.nn.embeddings.merge import original_table_names
from monolith.nn.embeddings.slot_address import rows_of_slot
from monolith.tables import ALL_BUCKETS, TableGroup
from monolith.tables.formats import BlockKind, entry_counts, import_entry_dump, import_group_entry_dump

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from monolith.nn.embeddings.embeddings import Embeddings


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
    target = {config.name: _slot_of(emb, config, slots or {}) for config in configs}
    for config in configs:
        if config.embedding_dim != emb.slots[target[config.name]].dim:
            raise InvalidArgumentError(
                f"slot {target[config.name]!r}: table {config.name!r} of the collection has dim {config.embedding_dim},"
                f" the slot {emb.slots[target[config.name]].dim}; define it with Slot(dim={config.embedding_dim})"
            )
    ids_of_table = ids or {}
    return {
        config.name: import_embedding(
            emb, target[config.name], modules[config.name].weight, ids=ids_of_table.get(config.name), time=time
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDump:
    """Result of an import of upstream's dump."""

    rows: int
    """Rows read."""
    rows_by_slot: Mapping[str, int]
    """Slot -> its rows in the tables now; 0 where the dump has none, or has them under another number."""
    other_rows: int
    """Rows in the tables that belong to no slot of the model."""
    ignored_tables: tuple[str, ...]
    """Tables of the dump that were not requested."""


def import_dump(
    emb: Embeddings, base: str | os.PathLike[str], *, tables: Mapping[str, str] | None = None
) -> ImportedDump:
    """Replaces the rows of `emb` by those of the files ``<base>-*-of-*``, and of ``<base>.meta-*`` where there are.

    Keys are taken as they are: a slot finds its rows if its `number` is the slot of the dumped ids (layout v2), or if
    it has `id_layout="any"`. ``docs/how-to/import-rows.md`` shows a model for a dump.

    Args:
        emb: A model whose rows are in this process (`LocalStore`).
        base: Path up to the ``-00000-of-00001`` part.
        tables: Table of the dump -> a slot whose table it is; None: by upstream's name of the table of these slots.
            Files of a single table have no name; they belong to the only table, or to that of the slot under ``""``.

    Raises:
        FailedPreconditionError: the rows are in another process.
        InvalidArgumentError: the files are not complete, fit no table, or a row does not fit its table.
        DataLossError: a file is damaged.
    """
    group, base = TableGroup.of_store(emb.store), Path(base)
    if any(base.parent.glob(f"{base.name}.meta-*")):
        names = _names_of(emb, base, tables or {})
        report = import_group_entry_dump(group, base, table_names=names)
        rows, ignored = report.rows, report.ignored_tables
    else:
        rows, ignored = import_entry_dump(group[_single_table(emb, base, tables or {})], base), ()
    by_slot, others = _count(emb)
    return ImportedDump(rows=rows, rows_by_slot=by_slot, other_rows=others, ignored_tables=ignored)


def _names_of(emb: Embeddings, base: Path, tables: Mapping[str, str]) -> dict[str, str]:
    """Returns table of the dump -> table of the model."""
    names = {name: _table_of(emb, slot) for name, slot in tables.items()}
    dumped = entry_counts(base)
    owners = _owners(emb)
    for table in emb.tables:
        slots = [name for name in owners if emb.placed[name].table == table]
        for name in {table, *original_table_names(slots)} & dumped.keys():
            names.setdefault(name, table)
    missing = sorted(names.keys() - dumped.keys())
    if missing or not names:
        raise InvalidArgumentError(
            f"dump '{base}': it has tables {sorted(dumped)}, expected {missing or 'the name of a table of the model'};"
            " map tables to slots with tables={'name in the dump': 'slot'}"
        )
    return names


def _single_table(emb: Embeddings, base: Path, tables: Mapping[str, str]) -> str:
    if "" in tables:
        return _table_of(emb, tables[""])
    if len(emb.tables) != 1:
        raise InvalidArgumentError(
            f"dump '{base}': its files are of a single table, the model has {list(emb.tables)}; choose one with"
            " tables={'': 'a slot of it'}"
        )
    return next(iter(emb.tables))


def _table_of(emb: Embeddings, slot: str) -> str:
    if slot not in emb.placed:
        raise InvalidArgumentError(f"slot {slot!r} does not exist; the slots are {list(emb.placed)}")
    return emb.placed[slot].table


def _owners(emb: Embeddings) -> list[str]:
    """Returns one slot for each set of rows: of those that share rows, the first."""
    return list({place.rows: name for name, place in reversed(list(emb.placed.items()))}.values())


def _count(emb: Embeddings) -> tuple[dict[str, int], int]:
    """Returns the rows of each slot, and rows of none."""
    names = emb.store.schema.names
    owners = _owners(emb)
    counts = dict.fromkeys(owners, 0)
    rows = 0
    with emb.cut() as cut:
        for block in cut.blocks(ALL_BUCKETS, state=False):
            if block.kind in {BlockKind.FILTER, BlockKind.TOMBSTONE}:
                continue
            rows += block.count
            for name in owners:
                if names[block.table] == emb.placed[name].table:
                    counts[name] += len(rows_of_slot(block, emb.placed[name])[1])
    by_rows = {emb.placed[name].rows: count for name, count in counts.items()}
    return {name: by_rows[place.rows] for name, place in emb.placed.items()}, rows - sum(counts.values())
