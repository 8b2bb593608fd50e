"""Restores the rows of one store: a snapshot, then the later changes in the record."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.errors import DataLossError
from monolith.ps.recovery.lineage import Lineage
from monolith.ps.recovery.record_log import Followed
from monolith.ps.server.hosted_rows import store_of_share
from monolith.tables.bucket_owners import owned_ranges
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS, bucket_bounds
from monolith.tables.local.joined import stamp_to_core
from monolith.tables.local.restore import LocalRestore
from monolith.tables.local.store import agreed_stamps
from monolith.tables.snapshot.bucket_file import blocks_of
from monolith.tables.snapshot.location import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.ps.recovery.chain import RowsPlan
    from monolith.ps.recovery.entries import Place, RowsEntry
    from monolith.ps.recovery.record_file import RecordFile
    from monolith.tables.batch import BatchStamp
    from monolith.tables.local.store import LocalStore

__all__ = ["RowsBack", "bring_rows_back"]

_LOADED_BYTES = 64 << 20
"""Row blocks in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsBack:
    """A recovered store."""

    name: str
    agreement: bytes
    store: LocalStore
    life: tuple[int, int]
    lineage: Lineage
    stamps: Mapping[int, BatchStamp]
    followed: Followed
    step: int | None
    """Step of the checkpoint; None: all rows came from the record."""


def bring_rows_back(
    name: str,
    last: RowsEntry,
    plan: RowsPlan,
    *,
    place: tuple[int, int],
    files: Mapping[int, RecordFile],
    snapshot: tuple[str, int] | None,
) -> RowsBack:
    """Restores rows by a plan. REQUIRES: the files were checked.

    Args:
        name: Name of the store.
        last: Entry of the store in the last file: its `life` and lineage.
        plan: How to restore the rows.
        place: Index of the server, and number of servers.
        files: Files by number.
        snapshot: Folder and step of the snapshot that the plan begins with, or takes filters from.

    Raises:
        OpError: a part cannot be read, or does not match.
    """
    index, num_ps = place
    agreement = last.agreement.encode()
    store = store_of_share(agreement, num_ps)
    owned = owned_ranges(num_ps)[index]
    stamps: Mapping[int, BatchStamp] = {}
    if plan.snapshot_id is not None and snapshot is not None:
        stamps = _load_snapshot(store, snapshot[0], plan.snapshot_id, owned)
    elif plan.filters_id is not None and snapshot is not None:
        _load_filters(store, snapshot[0], owned)
    for number in plan.files:
        section = files[number].meta.stores[name].section
        for part in () if section is None else section.places:
            _load_blocks(store, files[number], part, owned)
    core = store.native.core
    if plan.entry is not None:
        stamps = plan.entry.stamps
        for table, newest in enumerate(plan.entry.newest_times):
            core.raise_newest_time(table, newest)
    core.resume([stamp_to_core(each) for each in stamps.values()])
    store.history.mark_at(plan.end)
    return RowsBack(
        name=name,
        agreement=agreement,
        store=store,
        life=(last.generation, last.life),
        lineage=Lineage(last.lineage, dict(last.snapshots)),
        stamps=dict(stamps),
        followed=Followed(last.lineage, plan.end, store.history.keep()),
        step=None if snapshot is None or plan.snapshot_id is None else snapshot[1],
    )


def _load_snapshot(store: LocalStore, folder: str, snapshot_id: int, owned: range) -> Mapping[int, BatchStamp]:
    """Loads the buckets of this server, from any writer; returns their stamps."""
    with closing(open_source(folder)) as source:
        manifest = source.manifest
        if manifest.snapshot_id != snapshot_id:
            raise DataLossError(f"folder '{folder}': another snapshot than the checkpoint names")
        restore = LocalRestore(store.native, folder, manifest, owned, emptied=ALL_BUCKETS, ignore_unknown_tables=False)
        with restore:
            restore.load()
    return agreed_stamps(manifest.applied, owned)


def _load_filters(store: LocalStore, folder: str, owned: range) -> None:
    with closing(open_source(folder)) as source:
        found = blocks_of(folder, source.manifest, owned, kinds={BlockKind.FILTER})
        store.load([block for block in found if block.bucket in owned], buckets=owned, replace=False)


def _load_blocks(store: LocalStore, file: RecordFile, place: Place, owned: range) -> None:
    for blocks in file.blocks(place, _LOADED_BYTES):
        store.native.core.load(blocks, bucket_bounds(owned), None)  # verifies the blocks
