"""Makes the session known that code runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.hook import Hook
from monolith.train.current_session import close_session, open_session

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["SetCurrentSessionHook"]


class SetCurrentSessionHook(Hook):
    """Has `monolith.train.get_current_session` return the session while it is open.

    `monolith.train.Session` makes itself known; this does it for other ones, such as `monolith.testing.StepLoop`.
    """

    def __init__(self) -> None:
        self._is_own = False

    def after_create_session(self, session: HookedSession) -> None:
        """Makes it known, and has it forgotten however it ends."""
        self._is_own = open_session(session)
        if self._is_own:
            session.on_close(lambda: close_session(session))

    def end(self, session: HookedSession) -> None:
        """Forgets it."""
        if self._is_own:
            close_session(session)
