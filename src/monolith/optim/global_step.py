"""The step of a running session, for rules that need it without being given one.

This is the seam between optimizers and sessions: a session that runs steps opens `global_step_from` around them.
Outside of one, `Shampoo` counts its own steps and a schedule has to be called with the step.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COUNTERS: ContextVar[tuple[Callable[[], int], ...]] = ContextVar("monolith_global_step", default=())
"""Counters of the sessions that are open in this context, the innermost last."""


@contextmanager
def global_step_from(counter: Callable[[], int]) -> Iterator[None]:
    """Makes `current_global_step` call `counter` inside. Nests; the innermost one counts. They may end in any order.

    Applies to this thread and to the contexts copied from it (``contextvars.copy_context``), not to other threads.
    """
    own = partial(counter)  # an object of this call, though the same counter may be given twice
    _COUNTERS.set((*_COUNTERS.get(), own))
    try:
        yield
    finally:
        _COUNTERS.set(tuple(each for each in _COUNTERS.get() if each is not own))


def current_global_step() -> int | None:
    """Returns the step of the innermost `global_step_from`, or None outside of one."""
    counters = _COUNTERS.get()
    return counters[-1]() if counters else None
