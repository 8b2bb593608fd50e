"""The tables of a run alone, in the folder where a checkpoint has them: `<prefix>.assets/<store>/`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monolith.checkpoint.catalog import Catalog, full_local_path
from monolith.checkpoint.cut import require_folder_name
from monolith.checkpoint.folder import open_folder
from monolith.checkpoint.restore.store_restore import StoreRestore
from monolith.checkpoint.state_files import split_path
from monolith.checkpoint.writing import ASSETS
from monolith.tables.snapshot import save_cut
from monolith.tables.snapshot.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from monolith.checkpoint.restore.partial_recovery import PsMonitor
    from monolith.checkpoint.train_state import TrainState

logger = logging.getLogger(__name__)


def save_table_assets(state: TrainState, prefix: str) -> None:
    """Writes the tables of a run, between two steps, to `<prefix>.assets/`."""
    for name, store in state.stores.items():
        require_folder_name(name)
        users = {each: module for each, module in state.embeddings.items() if module.store is store}
        save_cut(
            state.embeddings[name].cut(),
            store.schema,
            f"{full_local_path(prefix)}{ASSETS}/{name}",
            extra={"modules": {each: module.saved_state() for each, module in users.items()}},
        )


def restore_table_assets(state: TrainState, basename: str, *, ps_monitor: PsMonitor | None = None) -> str | None:
    """Replaces the rows of a run by those of the newest checkpoint that has tables.

    If there is no checkpoint but exactly one folder of tables, that folder is restored.

    Args:
        state: The run whose tables are replaced.
        basename: Folder and base name: ``/models/a/model.ckpt``.
        ps_monitor: Devices with state are not changed.

    Returns:
        The prefix; None if there is nothing.
    """
    root, base = split_path(full_local_path(basename))
    folder = open_folder(root)
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
        for each, module in state.embeddings.items():
            if module.store is store:
                module.discard()
                module.set_extra_state(extra.get("modules", {}).get(each, module.saved_state()))
