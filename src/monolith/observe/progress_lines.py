"""Progress for another program, which shows it together with the progress of other processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from monolith.observe.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.clock import Clock

__all__ = ["ProgressLines"]

_SECONDS_BETWEEN_MESSAGES = 1.0
"""Fields such as the number of rows may need calls to other processes."""


class ProgressLines(Progress):
    """Sends progress, once a second at most, instead of drawing it. Belongs to one thread.

    >>> with ProgressLines(print, total=2) as bar:
    ...     bar.update(2, loss=0.25)
    {'done': 2, 'total': 2, 'fields': {'loss': 0.25}}
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], object], total: int | None = None, *, clock: Clock | None = None
    ) -> None:
        super().__init__(total, file=sys.stderr, clock=clock)
        self._send = send
        self._is_drawn = False
        self._interval = _SECONDS_BETWEEN_MESSAGES
        self._next_drawing = self._clock.monotonic()

    def _show(self) -> None:
        self._shown_at = self.done
        fields = {name: value() if callable(value) else value for name, value in self._fields.items()}
        self._send({"done": self.done, "total": self.total, "fields": fields})
