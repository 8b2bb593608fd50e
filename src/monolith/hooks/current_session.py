"""The current session, for code that has no reference to it."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.hook import HookedSession

_OPENED_HERE: ContextVar[tuple[HookedSession, ...]] = ContextVar("monolith_opened_sessions", default=())
"""Sessions that were opened in this context, the innermost last."""
_open: tuple[HookedSession, ...] = ()
"""Open sessions of this process, the latest last. Replaced atomically under the lock, so that readers need no lock."""
_lock = threading.Lock()


def get_current_session() -> Any:
    """Returns the innermost open session of this context; if there is none, the latest of the process; else None.

    So threads that train concurrently each have their own, and any other thread sees the one that is running.
    """
    everywhere = _open
    here = [session for session in _OPENED_HERE.get() if _is_in(session, everywhere)]
    sessions = here or everywhere
    return sessions[-1] if sessions else None


def open_session(session: HookedSession) -> bool:
    """Makes a session the current one; returns False if it was already open."""
    global _open  # noqa: PLW0603 - the open sessions of the process
    with _lock:
        if _is_in(session, _open):
            return False
        _open = (*_open, session)
    _OPENED_HERE.set((*_OPENED_HERE.get(), session))
    return True


def close_session(session: HookedSession) -> None:
    """Removes a session, in every thread; the enclosing one is current again. Does nothing if it is not open."""
    global _open  # noqa: PLW0603 - the open sessions of the process
    with _lock:
        _open = tuple(opened for opened in _open if opened is not session)
    _OPENED_HERE.set(tuple(opened for opened in _OPENED_HERE.get() if opened is not session))


def _is_in(session: HookedSession, sessions: Iterable[HookedSession]) -> bool:
    return any(opened is session for opened in sessions)


class SetCurrentSessionHook(Hook):
    """Makes `monolith.train.get_current_session` return the session while it is open.

    `monolith.train.Session` registers itself; this hook registers others, such as `monolith.testing.StepLoop`.
    """

    def __init__(self) -> None:
        self._is_own = False

    def after_create_session(self, session: HookedSession) -> None:
        """Registers the session, and removes it when it closes, with or without an error."""
        self._is_own = open_session(session)
        if self._is_own:
            session.on_close(lambda: close_session(session))

    def end(self, session: HookedSession) -> None:
        """Removes the session."""
        if self._is_own:
            close_session(session)
