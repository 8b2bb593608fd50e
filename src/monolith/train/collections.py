"""Named collections by which parts of a model share values: losses, summaries, metrics.

A model is called for every batch, so its values belong to that step and are cleared when the next one starts. Values
that were added before the first step, by `Task.build` or by a hook's `after_create_session`, stay.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor

from monolith.errors import FailedPreconditionError
from monolith.hooks import get_current_session

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)


class Collections:
    """Named lists: what was added before the first step, then what the last step has left. For the thread that steps.

    >>> collections = Collections()
    >>> collections.add(["losses", "all"], 0.0)
    >>> collections.add("losses", [])
    >>> collections.get("losses"), collections.get("nothing")
    ([0.0], None)
    >>> for step in (1, 2):
    ...     collections.begin_step()
    ...     collections.add("losses", step)
    >>> collections.get("losses")
    [0.0, 2]
    """

    def __init__(self) -> None:
        self._lasting: dict[str, list[Any]] = {}
        self._of_step: dict[str, list[Any]] | None = None
        """None before the first step."""

    def begin_step(self) -> None:
        """Clears the values of the previous step."""
        self._of_step = {}

    def end_step(self) -> None:
        """Lets go of the graphs of what this step has left; the values stay until the next one begins."""
        for values in (self._of_step or {}).values():
            values[:] = [value.detach() if isinstance(value, Tensor) else value for value in values]

    def add(self, names: str | Sequence[str], value: Any) -> None:
        """Appends `value` to one or several lists; numbers and texts always, anything else unless it is empty."""
        if not _is_worth_keeping(value):
            _log.info("value is %s, skip", value)
            return
        lists = self._lasting if self._of_step is None else self._of_step
        for name in [names] if isinstance(names, str) else dict.fromkeys(names):
            lists.setdefault(name, []).append(value)

    def get(self, name: str) -> list[Any] | None:
        """Returns the list of this name; None if nothing was added."""
        values = [*self._lasting.get(name, ()), *(self._of_step or {}).get(name, ())]
        return values or None

    def clear(self, name: str) -> None:
        """Empties the list of this name."""
        self._lasting.pop(name, None)
        if self._of_step is not None:
            self._of_step.pop(name, None)


def add_to_collections(names: str | Sequence[str], value: Any) -> None:
    """Adds a value by `Collections.add` of the current session.

    Raises:
        FailedPreconditionError: no session is open.
    """
    _current().add(names, value)


def get_collection(name: str) -> list[Any] | None:
    """Returns `Collections.get` of the current session.

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
