"""Embedding tables: every 64-bit id has its own row, which starts, learns, expires and is saved by itself.

May import: `ids`, `errors`, `clock`, `config` and the C++ core. Read `hash_table.py` first: `HashTable` is all of
it for one table, `TableGroup` for many. `store.py` is the interface through which models reach tables of any engine.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"Joined": "WorkerSession", "Mark": "ChangePosition"})
