"""Listeners of saves and restores: their interfaces, and those that save and restore the tables alone.

A full `Saver` has the tables in its own cut and needs no listener. The files are the same: `<prefix>.assets/<store>/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monolith.checkpoint import PsMonitor, TrainState, restore_table_assets, save_table_assets

if TYPE_CHECKING:
    from monolith.hook import HookedSession


class SaveGuard(Protocol):
    """Brackets a save, also a failed one, such as a barrier that holds the workers."""

    def before_save(self, session: HookedSession, global_step_value: int) -> object:
        """Called once before the first attempt."""

    def after_save(self, session: HookedSession, global_step_value: int) -> object:
        """Called once after the save, also after a failure."""


class SaverListener:
    """Base class of listeners of a saving hook. Override the methods that are needed; the others do nothing."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def before_save(self, session: HookedSession, global_step_value: int) -> None:
        """Called before each attempt to save, in the training thread."""

    def after_save(self, session: HookedSession, global_step_value: int) -> bool | None:  # noqa: ARG002 - as overridden
        """Called when a checkpoint was committed; True requests the end of training."""
        return None

    def end(self, session: HookedSession, global_step_value: int) -> None:
        """Called once when training ends without an error, after the last save."""


class RestorerListener:
    """Base class of listeners of a restoring hook."""

    def begin(self) -> None:
        """Called once, before the session exists."""

    def before_restore(self, session: HookedSession) -> None:
        """Called when the dense state was restored, before training begins."""

    def after_restore(self, session: HookedSession) -> None:
        """Called when every `before_restore` has returned."""


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
