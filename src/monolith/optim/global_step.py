"""The step that a running session is at, for rules that ask for it without being given one.

This is the seam between optimizers and sessions: a session that runs steps opens `global_step_from` around them.
Outside of one, `Shampoo` counts its own steps and a schedule has to be told the step.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COUNTERS: ContextVar[tuple[Callable[[], int], ...]] = ContextVar("monolith_global_step", default=())
"""Of the sessions that are open in this context, the innermost last."""


@contextmanager
def global_step_from(counter: Callable[[], int]) -> Iterator[None]:
    """Inside, `current_global_step` asks `counter`. Nests; the innermost one counts. They may end in any order.

    It holds for this thread and for the contexts copied from it (``contextvars.copy_context``), not for other threads.
    """
    own = partial(counter)  # an object of this call, though the same counter may be given twice
    _COUNTERS.set((*_COUNTERS.get(), own))
    try:
        yield
    finally:
        _COUNTERS.set(tuple(each for each in _COUNTERS.get() if each is not own))


def current_global_step() -> int | None:
    """The step of the innermost `global_step_from`, or None outside of one."""
    counters = _COUNTERS.get()
    return counters[-1]() if counters else None
