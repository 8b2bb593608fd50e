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
from monolith.ps.recovery.record_log import UnreadableRecordError
from monolith.ps.recovery.recorder import Followed, PriorRecord
from monolith.ps.server.hosted_rows import store_of_share
from monolith.ps.server.push_gates import DENSE_OWNER, rows_owner
from monolith.tables import ALL_BUCKETS
from monolith.tables.formats import BlockKind, PackedBlocks
from monolith.tables.local import LocalRestore, agreed_stamps, stamp_to_core
from monolith.tables.snapshot import blocks_of, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.checkpoint import SavedTables
    from monolith.ps.recovery.entries import RecordedState, RowsEntry
    from monolith.ps.recovery.record_log import RecordLog
    from monolith.tables import BatchStamp
    from monolith.tables.local import LocalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredStore:
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


def restore_store(
    name: str,
    last: RowsEntry,
    plan: RowsPlan,
    *,
    log: RecordLog,
    states: Mapping[int, RecordedState],
    snapshot: tuple[str, int] | None,
) -> RecoveredStore:
    """Restores rows by a plan. REQUIRES: its records are intact.

    Args:
        name: Name of the store.
        last: Entry of the store in the last state: its `life` and lineage.
        plan: How to restore the rows.
        log: The record.
        states: States by number.
        snapshot: Folder and step of the snapshot that the plan begins with, or takes filters from.

    Raises:
        OpError: a part cannot be read, or does not match.
    """
    agreement = last.agreement.encode()
    store = store_of_share(agreement, log.num_ps)
    owned = log.owned
    stamps: Mapping[int, BatchStamp] = {}
    if plan.snapshot_id is not None and snapshot is not None:
        stamps = _load_snapshot(store, snapshot[0], plan.snapshot_id, owned)
    elif plan.filters_id is not None and snapshot is not None:
        _load_filters(store, snapshot[0], owned)
    sections = (states[number].stores[name].section for number in plan.states)
    for payload in log.payloads([number for section in sections if section for number in section.records]):
        store.load(PackedBlocks(payload), buckets=owned, replace=False)
    core = store.native.core
    if plan.entry is not None:
        stamps = plan.entry.stamps
        for table, newest in enumerate(plan.entry.newest_times):
            core.raise_newest_time(table, newest)
    core.resume([stamp_to_core(stamp) for stamp in stamps.values()])
    store.history.mark_at(plan.end)
    return RecoveredStore(
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


_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RecoveredServer:
    """The recovered state of a server."""

    stores: list[RecoveredStore] = field(default_factory=list)
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
        if not self.stores and self.dense is None:
            return None
        stamps = {rows_owner(store.name): store.stamps for store in self.stores}
        if self.dense is not None:
            stamps[DENSE_OWNER] = self.dense.stamps
        steps = [store.step for store in self.stores if store.step is not None]
        return Recovered(
            step=max(steps, default=None),
            seconds=self.seconds,
            rows=sum(recovered.store.stats().rows for recovered in self.stores),
            stamps=stamps,
        )


def recover(log: RecordLog, *, model_dir: str) -> RecoveredServer:
    """Returns the state of a server from its record and the newest checkpoint; logs what cannot be used.

    Args:
        log: The record, which was read.
        model_dir: Folder of the checkpoints; empty: there are none.

    Raises:
        OpError: the record or the model directory cannot be read.
    """
    began = time.monotonic()
    if not log.states:
        return RecoveredServer()
    recovered = _Recovery(log, saved_tables(model_dir) if model_dir else []).run()
    recovered.seconds = time.monotonic() - began
    if recovered.summary is not None:
        _log.info("%s: %s", log.title, recovered.summary)
    return recovered


class _Recovery:
    """One recovery."""

    def __init__(self, log: RecordLog, checkpoints: Sequence[SavedTables]) -> None:
        self._record = log
        self._title = log.title
        self._states = dict(log.states)
        self._last = log.last
        self._newest = checkpoints[0] if checkpoints else None
        self._is_complete = True

    def run(self) -> RecoveredServer:
        plans = self._plans()
        stores = [store for name, plan in plans.items() if (store := self._store(name, plan)) is not None]
        dense = self._dense()
        owners = {rows_owner(store.name) for store in stores} | ({DENSE_OWNER} if dense is not None else set())
        parts = dict(self._states[max(self._states)].parts) if self._states else {}
        initialized = self._last.initialized & owners
        recovered = RecoveredServer(stores=stores, dense=dense, initialized=initialized, parts=parts)
        if self._is_complete and len(stores) == len(self._last.stores):
            followed = {store.name: store.followed for store in stores}
            recovered.prior = PriorRecord(followed=followed, dense_version=1, parts=parts)
        else:
            self._record.start_over()  # the next increment has everything
            recovered.prior = PriorRecord(followed={}, dense_version=-1, parts=parts)
        return recovered

    def _plans(self) -> dict[str, RowsPlan]:
        """Returns how to recover each store; skips damaged states and those after them."""
        snapshots = () if self._newest is None else tuple(self._newest.folders)
        while True:
            plans = {name: plan_rows(self._states, name, last, snapshots) for name, last in self._last.stores.items()}
            bad = self._first_bad({name: plan for name, plan in plans.items() if plan is not None})
            if bad is None:
                break
            self._is_complete = False
            self._states = {number: state for number, state in self._states.items() if number < bad}
        kept = {}
        for name, plan in plans.items():
            if plan is None or not self._is_of_newest(name):
                self._log_skipped(name)
            else:
                kept[name] = plan
        return kept

    def _first_bad(self, plans: Mapping[str, RowsPlan]) -> int | None:
        bad = set()
        for name, plan in plans.items():
            sections = {number: self._states[number].stores[name].section for number in plan.states}
            bad |= {number for number, part in sections.items() if part and not self._record.is_intact(part.records)}
            if plan.cut_at is not None:
                bad.add(plan.cut_at)
        if bad:
            _log.warning("%s: a part before number %d is missing; all later parts are skipped", self._title, min(bad))
        return min(bad, default=None)

    def _is_of_newest(self, name: str) -> bool:
        """Returns whether the newest checkpoint belongs to this history, or there is no checkpoint."""
        return self._newest is None or bool(self._newest.folders.keys() & self._last.stores[name].snapshots.keys())

    def _log_skipped(self, name: str) -> None:
        _log.warning(
            "%s: store %r is not recovered: its record is based on a deleted checkpoint, and %s. The server starts"
            " without its rows, and the chief restores them from the last checkpoint",
            self._title,
            name,
            "there is no other" if self._newest is None else f"'{self._newest.path}' is of another history",
        )

    def _store(self, name: str, plan: RowsPlan) -> RecoveredStore | None:
        snapshot = None
        used = plan.filters_id if plan.snapshot_id is None else plan.snapshot_id
        if self._newest is not None and used is not None:
            snapshot = self._newest.folders[used], self._newest.step
        last = self._last.stores[name]
        try:
            return restore_store(name, last, plan, log=self._record, states=self._states, snapshot=snapshot)
        except UnreadableRecordError:
            raise
        except OpError as error:
            _log.warning("%s: store %r is not recovered: %s", self._title, name, error)
            return None

    def _dense(self) -> CapturedDense | None:
        for number in sorted(self._states, reverse=True):
            entry = self._states[number].dense
            if entry is None or self._last.dense is None:
                return None  # the weights were replaced at this point: earlier ones are invalid
            if not self._record.is_intact(entry.records):
                self._is_complete = False
                _log.warning("%s: dense weights are damaged; earlier ones are recovered instead", self._title)
                continue
            data, begin = room_for(entry.bytes), 0
            for payload in self._record.payloads(entry.records):
                data[begin : begin + len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
                begin += len(payload)
            return CapturedDense(
                layout=entry.layout,
                origin=entry.origin,
                packed=PackedState(data, entry.index_bytes),
                stamps=entry.stamps,
                version=1,
            )
        return None
