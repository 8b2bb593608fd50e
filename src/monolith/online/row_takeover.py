"""Rows of a snapshot instead of those that a store has, while others read it: no row is ever away in between."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch

from monolith.publishing.serving_schema import serving_schema
from monolith.tables.history import Mark
from monolith.tables.local_store import LocalStore
from monolith.tables.row_block import BlockKind
from monolith.tables.serving_tables import serving_tables
from monolith.tables.snapshot.restore import restore

if TYPE_CHECKING:
    from monolith.tables.store import Store

__all__ = ["take_over_rows"]

_READER = "takeover"
_BUCKETS_AT_ONCE = 64
"""Whose rows are copied together."""


def take_over_rows(store: Store, folder: str, *, buckets: range) -> None:
    """Gives serving rows of some buckets the values of a snapshot, one by one, and removes those that it does not have.

    `restore` empties the buckets first, and who reads meanwhile finds nothing; here they find each row as it was or as
    it is to be. For a while the rows of the snapshot are in memory twice. An error leaves the store as it was.

    Args:
        store: Serving tables.
        folder: The snapshot.
        buckets: Consecutive ones.

    Raises:
        OpError: as `restore`.
    """
    with closing(LocalStore(serving_tables(serving_schema(store.schema)))) as copy:
        restore(copy, folder, buckets=buckets)
        now = copy.open_reader(_READER).mark
        reader = copy.open_reader(_READER, at=Mark(now.generation, now.life, 0))  # all rows count as changed
        _touch_all(copy, store, buckets)  # removals are remembered for who reads already
        for begin in range(buckets.start, buckets.stop, _BUCKETS_AT_ONCE):
            some = range(begin, min(begin + _BUCKETS_AT_ONCE, buckets.stop))
            store.load(reader.packed_changes(state=False, buckets=some), buckets=some, replace=False)


def _touch_all(copy: LocalStore, store: Store, buckets: range) -> None:
    """The ids of a store count as changed in its copy: those that it does not have are told as removed."""
    names = store.schema.names
    with store.cut() as cut:
        for block in cut.blocks(buckets, state=False):
            if block.kind is BlockKind.SERVING:
                numbers = torch.full((block.count,), block.bucket, dtype=torch.int16)
                copy.touch(names[block.table], torch.from_numpy(block.keys.copy()), buckets=numbers)
