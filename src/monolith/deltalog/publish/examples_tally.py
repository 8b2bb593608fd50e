"""Counts what was trained since the last increment: the number of examples, and the time of the oldest event."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables.batch import BatchStamp


class Trained(NamedTuple):
    """Summary of a range of steps."""

    examples: int = 0
    oldest_event_ms: int = 0
    """Unix milliseconds; 0: unknown."""
    newest_event_ms: int = 0
    step: int = 0
    """Total number of steps trained."""
    stamps: Mapping[int, BatchStamp] = {}
    """Worker -> its last batch."""

    def before(self, later: Trained) -> Trained:
        """Merges this range with the one that follows it."""
        known = [time for time in (self.oldest_event_ms, later.oldest_event_ms) if time]
        return Trained(
            self.examples + later.examples,
            min(known, default=0),
            max(self.newest_event_ms, later.newest_event_ms),
            max(self.step, later.step),
            {**self.stamps, **later.stamps},
        )


class Tally(Protocol):
    """Source of the counts of what was trained. Thread-safe."""

    def take(self) -> Trained:
        """Returns what was trained since the last call."""
        ...


class ExamplesTally:
    """Accumulator of trained examples and steps, emptied by the publisher. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = Trained()

    def add(self, trained: Trained) -> None:
        """Adds a step."""
        with self._lock:
            self._open = self._open.before(trained)

    def take(self) -> Trained:
        """Returns what was added since the last call."""
        with self._lock:
            taken, self._open = self._open, Trained(step=self._open.step, stamps=self._open.stamps)
        return taken
