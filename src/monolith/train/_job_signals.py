"""Signal handling of a process of a job, in its main thread."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["on_signals"]


@contextmanager
def on_signals(handler: Callable[[int], None], *, signals: tuple[int, ...]) -> Iterator[None]:
    """Inside, the first of these signals calls `handler` with its number; the second has its previous effect.

    Does nothing outside the main thread, as Python delivers signals only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def first(number: int, _: object) -> None:
        signal.signal(number, before[number])
        handler(number)

    for each in signals:
        before[each] = signal.signal(each, first)
    try:
        yield
    finally:
        for each, previous in before.items():
            signal.signal(each, previous)
