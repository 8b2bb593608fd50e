"""How far the time of events has come in one partition: how long its inputs may still bring older ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.online.joiner.rules import JoinRules

__all__ = ["Watermark"]


@dataclass(slots=True)
class _Input:
    newest_ms: int = 0
    heard_ms: float = 0.0
    """When it last brought something or was not at its end, by a clock that never jumps."""


@dataclass(slots=True)
class Watermark:
    """The least of what the inputs have reached; an idle one does not count. Pure: times are handed in.

    Each input has reached what lies before its newest event, less the disorder that is allowed: another event of the
    same time may follow. When all are idle, the time of events advances with the clock, so that the last windows of a
    stream that fell silent close as well.

    Args:
        rules: Say how much disorder there may be, and when an input is idle.
        names: Of the inputs.
        now_ms: Of a clock that never jumps, as in the other calls.
        newest: Newest event of each input, of a state that goes on.
    """

    disorder_ms: int
    idle_ms: float
    inputs: dict[str, _Input] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: JoinRules, names: Iterable[str], *, now_ms: float, newest: dict[str, int]) -> Watermark:
        """One that begins now."""
        inputs = {name: _Input(newest.get(name, 0), now_ms) for name in names}
        return cls(round(rules.disorder_seconds * 1000), rules.idle_seconds * 1000, inputs)

    @property
    def newest(self) -> dict[str, int]:
        """Time of the newest event of each input."""
        return {name: each.newest_ms for name, each in self.inputs.items()}

    def hear(self, name: str, newest_ms: int, *, now_ms: float) -> None:
        """An input brought events; 0: it brought none, but is not at its end."""
        heard = self.inputs[name]
        heard.newest_ms = max(heard.newest_ms, newest_ms)
        heard.heard_ms = now_ms

    def is_idle(self, name: str, *, now_ms: float) -> bool:
        """Whether an input has been silent for long enough."""
        return now_ms - self.inputs[name].heard_ms >= self.idle_ms

    def at(self, *, now_ms: float) -> int:
        """How far the time of events has come; 0 while nobody knows."""
        waking = [each.newest_ms for name, each in self.inputs.items() if not self.is_idle(name, now_ms=now_ms)]
        if waking:
            return max(0, min(waking) - self.disorder_ms - 1)
        newest = max(each.newest_ms for each in self.inputs.values())
        if not newest:
            return 0
        silent_ms = now_ms - max(each.heard_ms for each in self.inputs.values()) - self.idle_ms
        return max(0, newest - self.disorder_ms - 1 + round(silent_ms))

    def may_wait(self, name: str, *, lead_ms: int, now_ms: float) -> bool:
        """Whether an input is so far ahead of another one that is awake that reading on would only fill the state."""
        mine = self.inputs[name].newest_ms
        others = [
            each.newest_ms
            for other, each in self.inputs.items()
            if other != name and not self.is_idle(other, now_ms=now_ms)
        ]
        return bool(others) and mine - min(others) > lead_ms and min(others) > 0
