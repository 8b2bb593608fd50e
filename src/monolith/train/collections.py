"""What parts of a model leave for others under a name: losses, summaries, metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor

from monolith.errors import FailedPreconditionError
from monolith.hooks.current_session import get_current_session

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Collections", "add_to_collections", "get_collection"]

_log = logging.getLogger(__name__)


class Collections:
    """Named lists that grow. Used by the thread that steps.

    >>> collections = Collections()
    >>> collections.add(["losses", "all"], 0.0)
    >>> collections.add("losses", [])
    >>> collections.get("losses"), collections.get("nothing")
    ([0.0], None)
    """

    def __init__(self) -> None:
        self._lists: dict[str, list[Any]] = {}

    def add(self, names: str | Sequence[str], value: Any) -> None:
        """Appends `value` to one or several lists; numbers and texts always, anything else unless it is empty."""
        if not _is_worth_keeping(value):
            _log.info("value is %s, skip", value)
            return
        for name in [names] if isinstance(names, str) else dict.fromkeys(names):
            self._lists.setdefault(name, []).append(value)

    def get(self, name: str) -> list[Any] | None:
        """The list of this name; None where nothing was added."""
        found = self._lists.get(name)
        return list(found) if found else None

    def clear(self, name: str) -> None:
        """Empties the list of this name."""
        self._lists.pop(name, None)


def add_to_collections(names: str | Sequence[str], value: Any) -> None:
    """`Collections.add` of the current session.

    Raises:
        FailedPreconditionError: no session is open.
    """
    _current().add(names, value)


def get_collection(name: str) -> list[Any] | None:
    """`Collections.get` of the current session.

    Raises:
        FailedPreconditionError: no session is open.
    """
    return _current().get(name)


def _current() -> Collections:
    session = get_current_session()
    if session is None:
        raise FailedPreconditionError(
            "collections: no session is open; call this inside `with Session(...)`, or use its collections"
        )
    collections: Collections = session.collections
    return collections


def _is_worth_keeping(value: Any) -> bool:
    if isinstance(value, bool | int | float | str | Tensor):
        return True
    return bool(value)
