"""The session that code runs in, for those who are not handed one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["close_session", "get_current_session", "open_session"]

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
