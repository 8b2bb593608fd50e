"""Embedding tables: every 64-bit id has its own row, which starts, learns, expires and is saved by itself.

May import: `ids`, `errors`, `clock`, `config` and the C++ core. Read `hash_table.py` first: `HashTable` is all of
it for one table, `TableGroup` for many. `store.py` is the interface through which models reach tables of any engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.tables import compressors, filters, initializers, row_optimizers
from monolith.tables.batch import FoundRows
from monolith.tables.formats.row_block import BlockKind, PackedBlocks, RowBlock
from monolith.tables.hash_table import HashTable
from monolith.tables.local.shards import LocalShards
from monolith.tables.local.store import LocalStore
from monolith.tables.schema import Schema, SegmentSchema, TableSchema
from monolith.tables.store import (
    Applied,
    BatchStamp,
    ChangePosition,
    ChangeReader,
    Cut,
    LoadReport,
    OwnerClock,
    Pending,
    Plan,
    Rows,
    Store,
    StoreStats,
    Traits,
    Update,
    WorkerSession,
)
from monolith.tables.table_config import Segment, TableConfig
from monolith.tables.table_group import TableGroup
from monolith.tables.touched_key_set import TouchedKeySet

__all__ = [
    "Applied",
    "BatchStamp",
    "BlockKind",
    "ChangePosition",
    "ChangeReader",
    "Cut",
    "FoundRows",
    "HashTable",
    "LoadReport",
    "LocalShards",
    "LocalStore",
    "OwnerClock",
    "PackedBlocks",
    "Pending",
    "Plan",
    "RowBlock",
    "Rows",
    "Schema",
    "Segment",
    "SegmentSchema",
    "Store",
    "StoreStats",
    "TableConfig",
    "TableGroup",
    "TableSchema",
    "TouchedKeySet",
    "Traits",
    "Update",
    "WorkerSession",
    "compressors",
    "filters",
    "initializers",
    "row_optimizers",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"Joined": "WorkerSession", "Mark": "ChangePosition"})
