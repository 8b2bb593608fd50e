"""The session that code runs in, for those who are not handed one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from monolith.hook import Hook

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["SetCurrentSessionHook", "close_session", "get_current_session", "open_session"]

_OPEN: ContextVar[tuple[HookedSession, ...]] = ContextVar("monolith_open_sessions", default=())
"""Sessions that are open in this context, the innermost last."""


def get_current_session() -> Any:
    """The innermost open session of this context, else None.

    A thread of its own sees the sessions that were open where its context was copied (``contextvars.copy_context``).
    """
    sessions = _OPEN.get()
    return sessions[-1] if sessions else None


def open_session(session: HookedSession) -> bool:
    """Makes a session the current one; False if it was open already."""
    sessions = _OPEN.get()
    if any(each is session for each in sessions):
        return False
    _OPEN.set((*sessions, session))
    return True


def close_session(session: HookedSession) -> None:
    """Forgets a session; the one around it is current again. Does nothing if it is not open here."""
    _OPEN.set(tuple(each for each in _OPEN.get() if each is not session))


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
