"""Replaces the rows of a store by those of a snapshot, without a gap for concurrent readers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch

from monolith.deltalog.publish.serving_schema import serving_schema
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import Mark
from monolith.tables.local.store import LocalStore
from monolith.tables.serving_tables import serving_tables
from monolith.tables.snapshot.restore import restore

if TYPE_CHECKING:
    from monolith.tables.store import Store

__all__ = ["take_over_rows"]

_READER = "takeover"
_BUCKETS_AT_ONCE = 64
"""Number of buckets whose rows are copied together."""


def take_over_rows(store: Store, folder: str, *, buckets: range) -> None:
    """Updates the serving rows of buckets to the values of a snapshot, row by row, and removes rows not in it.

    `restore` empties the buckets first, so that concurrent readers miss rows; here they see each row with its old or
    its new value. Meanwhile the rows of the snapshot are in memory twice. An error leaves the store unchanged.

    Args:
        store: Serving tables.
        folder: Folder of the snapshot.
        buckets: Consecutive buckets.

    Raises:
        OpError: as for `restore`.
    """
    with closing(LocalStore(serving_tables(serving_schema(store.schema)))) as copy:
        restore(copy, folder, buckets=buckets)
        now = copy.open_reader(_READER).mark
        reader = copy.open_reader(_READER, at=Mark(now.generation, now.life, 0))  # all rows count as changed
        _touch_all(copy, store, buckets)  # the open reader records the removals
        for begin in range(buckets.start, buckets.stop, _BUCKETS_AT_ONCE):
            some = range(begin, min(begin + _BUCKETS_AT_ONCE, buckets.stop))
            store.load(reader.packed_changes(state=False, buckets=some), buckets=some, replace=False)


def _touch_all(copy: LocalStore, store: Store, buckets: range) -> None:
    """Marks the ids of a store as changed in its copy, so that ids missing there are reported as removed."""
    names = store.schema.names
    with store.cut() as cut:
        for block in cut.blocks(buckets, state=False):
            if block.kind is BlockKind.SERVING:
                numbers = torch.full((block.count,), block.bucket, dtype=torch.int16)
                copy.touch(names[block.table], torch.from_numpy(block.keys.copy()), buckets=numbers)
