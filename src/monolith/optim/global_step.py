"""The step that a running session is at, for rules that ask for it without being given one.

This is the seam between optimizers and sessions: a session that runs steps opens `global_step_from` around them.
Outside of one, `Shampoo` counts its own steps and a schedule has to be told the step.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COUNTER: ContextVar[Callable[[], int] | None] = ContextVar("monolith_global_step", default=None)


@contextmanager
def global_step_from(counter: Callable[[], int]) -> Iterator[None]:
    """Inside, `current_global_step` asks `counter`. Nests; the innermost one counts.

    It holds for this thread and for the contexts copied from it (``contextvars.copy_context``), not for other threads.
    """
    token = _COUNTER.set(counter)
    try:
        yield
    finally:
        _COUNTER.reset(token)


def current_global_step() -> int | None:
    """The step of the innermost `global_step_from`, or None outside of one."""
    counter = _COUNTER.get()
    return None if counter is None else counter()
