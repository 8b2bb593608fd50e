"""Imports table dumps of ByteDance Monolith, with weights, optimizer state and times, into tables of `Embeddings`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings.merge import original_table_names
from monolith.nn.embeddings.row_ids import rows_of_slot
from monolith.tables.formats.entry_dump import entry_counts, import_entry_dump, import_group_entry_dump
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.table_group import TableGroup

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from monolith.nn.embeddings.embeddings import Embeddings

__all__ = ["ImportedDump", "import_dump"]


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


def _names_of(emb: Embeddings, base: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Returns table of the dump -> table of the model."""
    found = {name: _table_of(emb, slot) for name, slot in given.items()}
    dumped = entry_counts(base)
    owners = _owners(emb)
    for table in emb.tables:
        slots = [name for name in owners if emb.placed[name].table == table]
        for name in {table, *original_table_names(slots)} & dumped.keys():
            found.setdefault(name, table)
    missing = sorted(found.keys() - dumped.keys())
    if missing or not found:
        raise InvalidArgumentError(
            f"dump '{base}': it has tables {sorted(dumped)}, expected {missing or 'the name of a table of the model'};"
            " map tables to slots with tables={'name in the dump': 'slot'}"
        )
    return found


def _single_table(emb: Embeddings, base: Path, given: Mapping[str, str]) -> str:
    if "" in given:
        return _table_of(emb, given[""])
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
