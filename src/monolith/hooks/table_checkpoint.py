"""Listeners that save and restore tables, for a dense part that is kept elsewhere or in a dense-only saver.

A full `Saver` has the tables in its own cut and needs no listener. The files are the same: `<prefix>.assets/<store>/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.checkpoint import PsMonitor, TrainState, restore_table_assets, save_table_assets
from monolith.hooks.saver_listener import RestorerListener, SaverListener

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["HashTableCheckpointRestorerListener", "HashTableCheckpointSaverListener"]


class HashTableCheckpointSaverListener(SaverListener):
    """Writes the tables before the dense part is saved, so that no checkpoint refers to missing tables.

    Args:
        basename: Folder and base name: ``/models/a/model.ckpt``.
        state: Owner of the tables; None: the session's own `state`.
    """

    def __init__(self, basename: str, *, state: TrainState | None = None) -> None:
        self._basename = basename
        self._state = state

    def before_save(self, session: HookedSession, global_step_value: int) -> None:
        """Writes `<basename>-<step>.assets/`."""
        save_table_assets(self._state or session.state, f"{self._basename}-{global_step_value}")


class HashTableCheckpointRestorerListener(RestorerListener):
    """Restores the tables of the newest checkpoint; without one, does nothing.

    Args:
        basename: Folder and base name: ``/models/a/model.ckpt``.
        state: Owner of the tables; None: the session's own `state`.
        ps_monitor: Restores only tables that have no state yet.
    """

    def __init__(self, basename: str, *, state: TrainState | None = None, ps_monitor: PsMonitor | None = None) -> None:
        self._basename = basename
        self._state = state
        self._ps_monitor = ps_monitor

    def before_restore(self, session: HookedSession) -> None:
        """Replaces the rows of the tables."""
        restore_table_assets(self._state or session.state, self._basename, ps_monitor=self._ps_monitor)
