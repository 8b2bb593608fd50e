"""What was trained since the last increment: how many examples, and how old the oldest of them is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables.batch import BatchStamp


class Trained(NamedTuple):
    """Some steps."""

    examples: int = 0
    oldest_event_ms: int = 0
    """0: not known."""
    newest_event_ms: int = 0
    step: int = 0
    """Steps trained in all."""
    stamps: Mapping[int, BatchStamp] = {}
    """Worker -> its last batch."""

    def before(self, later: Trained) -> Trained:
        """These steps and some that came after them."""
        known = [time for time in (self.oldest_event_ms, later.oldest_event_ms) if time]
        return Trained(
            self.examples + later.examples,
            min(known, default=0),
            max(self.newest_event_ms, later.newest_event_ms),
            max(self.step, later.step),
            {**self.stamps, **later.stamps},
        )


class Tally(Protocol):
    """Who knows what was trained. Any thread may call it."""

    def take(self) -> Trained:
        """What came since the last time."""
        ...


class ExamplesTally:
    """Counts what is trained until somebody takes it. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = Trained()

    def add(self, trained: Trained) -> None:
        """A step was made."""
        with self._lock:
            self._open = self._open.before(trained)

    def take(self) -> Trained:
        """What was counted since the last time."""
        with self._lock:
            taken, self._open = self._open, Trained(step=self._open.step, stamps=self._open.stamps)
        return taken
