"""Restores a session when it is created: the run first, then the additional state of listeners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from monolith.checkpoint import CUSTOM_RESTORE_OP, RestoreConfig, SavedCheckpoint, Saver, TrainState
from monolith.errors import InvalidArgumentError
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.hook import HookedSession
    from monolith.hooks.listeners import RestorerListener


class CheckpointRestorerHook(Hook):
    """Restores a checkpoint. It precedes every other hook, so that all of them see the restored state.

    Args:
        saver: Reads checkpoints; None: only the listeners restore.
        state: State to restore; None: the session's own `state`.
        listeners: Called after that, each `before_restore`, then each `after_restore`.
    """

    def __init__(
        self, saver: Saver | None = None, *, state: TrainState | None = None, listeners: Sequence[RestorerListener] = ()
    ) -> None:
        self._saver = saver
        self._state = state
        self._listeners = tuple(listeners)
        self.restored: SavedCheckpoint | None = None
        """The checkpoint restored last; None if there was none."""

    def begin(self) -> None:
        """Calls `begin` of the listeners."""
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: HookedSession) -> None:
        """Restores; also each time the session was rebuilt."""
        if self._saver is not None:
            state = self._state or session.state
            self.restored = self._saver.restore(state, options=custom_restore_options(session))
        for listener in self._listeners:
            listener.before_restore(session)
        for listener in self._listeners:
            listener.after_restore(session)


def custom_restore_options(session: HookedSession) -> RestoreConfig | None:
    """Removes and returns the entry of the collection `CUSTOM_RESTORE_OP`: options, or an alias map.

    Raises:
        InvalidArgumentError: more than one entry, or one of another type.
    """
    entries = session.collections.get(CUSTOM_RESTORE_OP)
    if not entries:
        return None
    session.collections.clear(CUSTOM_RESTORE_OP)
    if len(entries) == 1 and isinstance(entries[0], RestoreConfig):
        return entries[0]
    if len(entries) == 1 and isinstance(entries[0], Mapping):
        return RestoreConfig(alias_map=entries[0])
    raise InvalidArgumentError(
        f"collection {CUSTOM_RESTORE_OP!r}: expected one RestoreConfig or one alias map, got {entries!r}"
    )
