"""Recovers a server from the newest checkpoint and its own record, before it accepts clients."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from monolith.checkpoint import saved_tables
from monolith.errors import DataLossError, OpError
from monolith.ps.dense.shard import CapturedDense
from monolith.ps.dense.state_transfer import PackedState, room_for
from monolith.ps.recovery.chain import RowsPlan, plan_rows
from monolith.ps.recovery.config import Recovered
from monolith.ps.recovery.entries import Lineage
from monolith.ps.recovery.record_log import Followed, PriorRecord
from monolith.ps.server.hosted_rows import store_of_share
from monolith.ps.server.push_gates import DENSE_OWNER, rows_owner
from monolith.tables import ALL_BUCKETS, bucket_bounds, owned_ranges
from monolith.tables.formats import BlockKind
from monolith.tables.local import LocalRestore, agreed_stamps, stamp_to_core
from monolith.tables.snapshot import blocks_of, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.checkpoint import SavedTables
    from monolith.ps.recovery.entries import Place, RecordMeta, RowsEntry
    from monolith.ps.recovery.record_file import RecordFile
    from monolith.ps.recovery.record_folder import RecordFolder
    from monolith.tables import BatchStamp
    from monolith.tables.local import LocalStore

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
    core.resume([stamp_to_core(stamp) for stamp in stamps.values()])
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
        blocks = blocks_of(folder, source.manifest, owned, kinds={BlockKind.FILTER})
        store.load([block for block in blocks if block.bucket in owned], buckets=owned, replace=False)


def _load_blocks(store: LocalStore, file: RecordFile, place: Place, owned: range) -> None:
    for blocks in file.blocks(place, _LOADED_BYTES):
        store.native.core.load(blocks, bucket_bounds(owned), None)  # verifies the blocks


_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class CameBack:
    """The recovered state of a server."""

    rows: list[RowsBack] = field(default_factory=list)
    dense: CapturedDense | None = None
    initialized: frozenset[str] = frozenset()
    """Recovered owners that were initialized."""
    parts: dict[str, bytes] = field(default_factory=dict)
    """State of other parts of the server, by name."""
    prior: PriorRecord | None = None
    """The record, to be continued."""
    seconds: float = 0.0

    def without_dense(self) -> None:
        """Drops dense weights that cannot be used here."""
        self.dense = None
        self.initialized -= {DENSE_OWNER}

    @property
    def summary(self) -> Recovered | None:
        """Summary of the recovered state; None: nothing was recovered."""
        if not self.rows and self.dense is None:
            return None
        stamps = {rows_owner(store.name): store.stamps for store in self.rows}
        if self.dense is not None:
            stamps[DENSE_OWNER] = self.dense.stamps
        steps = [store.step for store in self.rows if store.step is not None]
        return Recovered(
            step=max(steps, default=None),
            seconds=self.seconds,
            rows=sum(restored.store.stats().rows for restored in self.rows),
            stamps=stamps,
        )


def recover(folder: RecordFolder, *, model_dir: str) -> CameBack:
    """Returns the state of a server from its record and the newest checkpoint; logs what cannot be used.

    Args:
        folder: Folder of the record.
        model_dir: Folder of the checkpoints; empty: there are none.

    Raises:
        OpError: the model directory cannot be read.
    """
    began = time.monotonic()
    files = folder.found()
    if not files:
        return CameBack()
    recovery = _Recovery(folder, files, saved_tables(model_dir) if model_dir else [])
    came_back = recovery.run()
    came_back.seconds = time.monotonic() - began
    if came_back.summary is not None:
        _log.info("%s: %s", folder.title, came_back.summary)
    return came_back


class _Recovery:
    """One recovery. Each file is checked once, before it is used."""

    def __init__(self, folder: RecordFolder, files: Sequence[RecordFile], checkpoints: Sequence[SavedTables]) -> None:
        self._title = folder.title
        self._place = folder.index, folder.num_ps
        self._files = {file.meta.number: file for file in files}
        self._last = files[-1].meta
        self._newest = checkpoints[0] if checkpoints else None
        self._is_checked: set[int] = set()

    def run(self) -> CameBack:
        plans = self._plans()
        rows = [store for name, plan in plans.items() if (store := self._rows(name, plan)) is not None]
        dense = self._dense()
        owners = {rows_owner(store.name) for store in rows} | ({DENSE_OWNER} if dense is not None else set())
        came_back = CameBack(rows=rows, dense=dense, initialized=self._last.initialized & owners, parts=self._parts())
        if {store.name for store in rows} == self._last.stores.keys():
            came_back.prior = self._prior(came_back)
        return came_back

    def _plans(self) -> dict[str, RowsPlan]:
        """Returns how to recover each store; skips damaged files and those after them."""
        snapshots = () if self._newest is None else tuple(self._newest.folders)
        while True:
            metas = [self._files[number].meta for number in sorted(self._files)]
            plans = {name: plan_rows(metas, name, last, snapshots) for name, last in self._last.stores.items()}
            bad = self._first_bad([plan for plan in plans.values() if plan is not None])
            if bad is None:
                break
            self._files = {number: file for number, file in self._files.items() if number < bad}
        kept = {}
        for name, plan in plans.items():
            if plan is None or not self._is_of_newest(name):
                self._leave_aside(name)
            else:
                kept[name] = plan
        return kept

    def _first_bad(self, plans: Sequence[RowsPlan]) -> int | None:
        for number in sorted({number for plan in plans for number in plan.files}):
            try:
                self._check(number)
            except DataLossError as error:
                _log.warning("%s; the file and all later ones are skipped", error)
                return number
        cuts = [plan.cut_at for plan in plans if plan.cut_at is not None]
        if cuts:
            _log.warning("%s: a part before number %d is missing; all later parts are skipped", self._title, min(cuts))
        return min(cuts, default=None)

    def _check(self, number: int) -> None:
        if number not in self._is_checked:
            self._files[number].require_whole()
            self._is_checked.add(number)

    def _is_of_newest(self, name: str) -> bool:
        """Returns whether the newest checkpoint belongs to this history, or there is no checkpoint."""
        return self._newest is None or bool(self._newest.folders.keys() & self._last.stores[name].snapshots.keys())

    def _leave_aside(self, name: str) -> None:
        _log.warning(
            "%s: store %r is not recovered: its record is based on a deleted checkpoint, and %s. The server starts"
            " without its rows, and the chief restores them from the last checkpoint",
            self._title,
            name,
            "there is no other" if self._newest is None else f"'{self._newest.path}' is of another history",
        )

    def _rows(self, name: str, plan: RowsPlan) -> RowsBack | None:
        snapshot = None
        used = plan.filters_id if plan.snapshot_id is None else plan.snapshot_id
        if self._newest is not None and used is not None:
            snapshot = self._newest.folders[used], self._newest.step
        last = self._last.stores[name]
        try:
            return bring_rows_back(name, last, plan, place=self._place, files=self._files, snapshot=snapshot)
        except OpError as error:
            _log.warning("%s: store %r is not recovered: %s", self._title, name, error)
            return None

    def _dense(self) -> CapturedDense | None:
        for number in sorted(self._files, reverse=True):
            entry = self._files[number].meta.dense
            if entry is None or self._last.dense is None:
                return None  # the weights were replaced at this point: earlier ones are invalid
            file = self._files.get(entry.number)
            if file is None or not self._is_whole(entry.number):
                continue
            data = room_for(entry.place.bytes)
            data.copy_(torch.from_numpy(file.read(entry.place)))
            return CapturedDense(
                layout=entry.layout,
                origin=entry.origin,
                packed=PackedState(data, entry.index_bytes),
                stamps=entry.stamps,
                version=1,
            )
        return None

    def _is_whole(self, number: int) -> bool:
        try:
            self._check(number)
        except DataLossError as error:
            _log.warning("%s; earlier dense weights are recovered instead", error)
            return False
        return True

    def _parts(self) -> dict[str, bytes]:
        number = max(self._files, default=None)
        if number is None or not self._is_whole(number):
            return {}
        file = self._files[number]
        return {name: file.read(place).tobytes() for name, place in file.meta.parts.items()}

    def _prior(self, came_back: CameBack) -> PriorRecord | None:
        metas: dict[int, RecordMeta] = {number: file.meta for number, file in self._files.items()}
        if not metas:
            return None
        return PriorRecord(
            metas=metas,
            sizes={number: file.size for number, file in self._files.items()},
            last=self._last,
            followed={store.name: store.followed for store in came_back.rows},
            dense_version=-1 if came_back.dense is None else came_back.dense.version,
            parts=came_back.parts,
        )
