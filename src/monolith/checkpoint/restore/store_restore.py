"""Stores whose rows have several owners that can fail one by one, such as parameter servers, as a restore sees them."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Protocol, Self

from monolith.checkpoint.catalog import Catalog, full_local_path
from monolith.checkpoint.cut import require_folder_name
from monolith.checkpoint.state_files import split_path
from monolith.checkpoint.writing import ASSETS
from monolith.files import open_storage
from monolith.tables import ALL_BUCKETS, RemoteRows, shared_buckets
from monolith.tables.formats import BlockKind
from monolith.tables.local import agreed_stamps
from monolith.tables.snapshot import MANIFEST_NAME, blocks_of, match_tables, open_source, save_cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monolith.checkpoint.restore.partial_recovery import PsMonitor
    from monolith.checkpoint.train_state import TrainState
    from monolith.tables import LoadReport, OwnerClock, PreparedRestore, Schema
    from monolith.tables.formats import RowBlock
    from monolith.tables.snapshot import RestoreReport, SnapshotManifest


logger = logging.getLogger(__name__)


class RestoredRows(Protocol):
    """The part of `monolith.tables.store.Store` that a restore needs."""

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""

    @property
    def owned(self) -> Sequence[range]:
        """The buckets of each owner."""

    def prepare_restore(
        self, folder: str, manifest: SnapshotManifest, *, buckets: range, ignore_unknown_tables: bool = False
    ) -> PreparedRestore:
        """Reads and checks the files of some buckets."""

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows."""

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Sets the progress of the saved run."""


class StoreRestore:
    """A restore of one store that was read and checked; a context manager, which abandons it unless it was loaded.

    Where only some owners have lost their rows, these get the rows that were saved and the others keep theirs, which
    are newer. Admission counts are restored on all owners, as in ByteDance Monolith.

    Where ranks have saved a part each, `folders` has all parts. Without `lost`, the owners without state, everything is
    replaced.
    """

    def __init__(
        self,
        store: RestoredRows,
        folders: Sequence[str],
        *,
        lost: Sequence[int] | None = None,
        ignore_unknown_tables: bool = False,
    ) -> None:
        self._store = store
        self._ignore_unknown_tables = ignore_unknown_tables
        self._lost = lost
        self._owners = store.owners if lost is not None and isinstance(store, RemoteRows) else None
        self._filters: list[tuple[range, list[RowBlock]]] = []
        with ExitStack() as undone:
            sources = [undone.enter_context(closing(open_source(folder))) for folder in folders]
            self._parts = dict(zip(folders, (source.manifest for source in sources), strict=True))
            self.applied: list[OwnerClock] = [clock for part in self._parts.values() for clock in part.applied]
            """Clocks of the saved rows."""
            self.manifest = next(iter(self._parts.values()))
            """Manifest of the snapshot, or of its first part."""
            self._prepared: list[PreparedRestore] = [
                undone.enter_context(
                    store.prepare_restore(
                        folder, manifest, buckets=buckets, ignore_unknown_tables=ignore_unknown_tables
                    )
                )
                for folder, manifest in self._parts.items()
                for buckets in self._lost_ranges(manifest)
            ]
            for folder, manifest in self._parts.items():
                self._read_filters(folder, manifest)
            self._require_agreement()
            self._closing = undone.pop_all()

    def load(self, *, generation: int) -> list[RestoreReport]:
        """Replaces the rows and the progress of the store."""
        reports = [prepared.load() for prepared in self._prepared]
        if self._owners is None or self._lost is None:
            self._store.resume(applied=self.applied, generation=generation)
            return reports
        for buckets, blocks in self._filters:
            self._store.load(blocks, buckets=buckets, replace=False)
        if self._lost:
            self._owners.resume(self._lost, applied=self.applied, generation=generation)
        return reports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _lost_ranges(self, manifest: SnapshotManifest) -> list[range]:
        """Returns the buckets to load from one snapshot."""
        needed = [ALL_BUCKETS]
        if self._owners is not None and self._lost is not None:
            needed = [self._owners.owned[owner] for owner in self._lost]
        if len(self._parts) == 1:
            return needed
        return [part for part in (shared_buckets(buckets, manifest.buckets) for buckets in needed) if part]

    def _require_agreement(self) -> None:
        """Checks what `resume` would reject, before anything has changed: owners whose buckets differ in their batches.

        Raises:
            FailedPreconditionError: an owner would get buckets whose clocks differ.
        """
        for owner, buckets in enumerate(self._store.owned):
            if self._lost is None or owner in self._lost:
                agreed_stamps(self.applied, buckets)

    def _read_filters(self, folder: str, manifest: SnapshotManifest) -> None:
        """Reads the filters of the owners that keep their rows."""
        if self._owners is None or self._lost is None:
            return
        tables = self._store.schema.tables
        ignored = self._ignore_unknown_tables
        match = match_tables(manifest, tables, ignore_unknown_tables=ignored, origin=f"folder '{folder}'")
        if list(match.targets) != list(range(len(tables))):
            logger.warning("'%s' has other tables: what admission has counted stays where rows stay", folder)
            return
        for owner, owned in enumerate(self._owners.owned):
            buckets = owned if len(self._parts) == 1 else shared_buckets(owned, manifest.buckets)
            if owner not in self._lost and buckets:
                blocks = blocks_of(folder, manifest, buckets, kinds={BlockKind.FILTER})
                self._filters.append((buckets, [block for block in blocks if block.bucket in buckets]))


def save_table_assets(state: TrainState, prefix: str) -> None:
    """Writes the tables of a run, between two steps, to `<prefix>.assets/`."""
    for name, store in state.stores.items():
        require_folder_name(name)
        users = {user: module for user, module in state.embeddings.items() if module.store is store}
        save_cut(
            state.embeddings[name].cut(),
            store.schema,
            f"{full_local_path(prefix)}{ASSETS}/{name}",
            extra={"modules": {user: module.saved_state() for user, module in users.items()}},
        )


def restore_table_assets(state: TrainState, basename: str, *, ps_monitor: PsMonitor | None = None) -> str | None:
    """Replaces the rows of a run by those of the newest checkpoint that has tables.

    If there is no checkpoint but exactly one folder of tables, that folder is restored.

    Args:
        state: The run whose tables are replaced.
        basename: Storage and base name: ``/models/a/model.ckpt``.
        ps_monitor: Devices with state are not changed.

    Returns:
        The prefix; None if there is nothing.
    """
    root, base = split_path(full_local_path(basename))
    folder = open_storage(root)
    prefixes = [split_path(path)[1] for path in Catalog(folder, base).newest_first()]
    if not prefixes:
        alone = [name.removesuffix(ASSETS) for name in folder.names() if name.endswith(ASSETS)]
        prefixes = alone if len(alone) == 1 else []
    for prefix in prefixes:
        if any(folder.exists(f"{prefix}{ASSETS}/{name}/{MANIFEST_NAME}") for name in state.stores):
            _restore(state, f"{root}/{prefix}{ASSETS}", ps_monitor)
            return f"{root}/{prefix}"
    return None


def _restore(state: TrainState, assets: str, ps_monitor: PsMonitor | None) -> None:
    lost = {} if ps_monitor is None else ps_monitor.lost_owners(state)
    served = {} if ps_monitor is None else ps_monitor.owners(state)
    for name, store in state.stores.items():
        if ps_monitor is not None and name not in served and not ps_monitor.has_lost(state, name):
            continue
        with StoreRestore(store, [f"{assets}/{name}"], lost=lost.get(name)) as restore:
            reports = restore.load(generation=restore.manifest.generation)
        logger.info("tables of %r were restored from '%s': %s", name, assets, [report.rows for report in reports])
        if lost.get(name) == []:
            continue
        saved = restore.manifest.extra if name not in lost else None  # else the run continues where it is
        extra: Any = saved if isinstance(saved, dict) else {}
        for user, module in state.embeddings.items():
            if module.store is store:
                module.discard()
                module.set_extra_state(extra.get("modules", {}).get(user, module.saved_state()))
