"""Watermark of one partition: the event time up to which its inputs are complete."""

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
    """When it last had records or was not at its end, by a monotonic clock."""


@dataclass(slots=True)
class Watermark:
    """Minimum of the event times that the inputs have reached; idle inputs do not count. Pure: times are arguments.

    An input has reached the time before its newest event, less the allowed disorder: another event of the same time may
    follow. When all inputs are idle, the watermark advances with the clock, so that the last windows of a silent stream
    close as well.

    Args:
        rules: Rules with the allowed disorder and the idle time.
        names: Names of the inputs.
        now_ms: Time of a monotonic clock, as in the other calls.
        newest: Newest event of each input, from a resumed state.
    """

    disorder_ms: int
    idle_ms: float
    inputs: dict[str, _Input] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: JoinRules, names: Iterable[str], *, now_ms: float, newest: dict[str, int]) -> Watermark:
        """Creates a watermark that starts now."""
        inputs = {name: _Input(newest.get(name, 0), now_ms) for name in names}
        return cls(round(rules.disorder_seconds * 1000), rules.idle_seconds * 1000, inputs)

    @property
    def newest(self) -> dict[str, int]:
        """Time of the newest event of each input."""
        return {name: each.newest_ms for name, each in self.inputs.items()}

    def hear(self, name: str, newest_ms: int, *, now_ms: float) -> None:
        """Records that an input returned events; 0: it returned none, but is not at its end."""
        heard = self.inputs[name]
        heard.newest_ms = max(heard.newest_ms, newest_ms)
        heard.heard_ms = now_ms

    def is_idle(self, name: str, *, now_ms: float) -> bool:
        """Returns whether an input has been silent for the idle time."""
        return now_ms - self.inputs[name].heard_ms >= self.idle_ms

    def at(self, *, now_ms: float) -> int:
        """Returns the watermark; 0 while unknown."""
        waking = [each.newest_ms for name, each in self.inputs.items() if not self.is_idle(name, now_ms=now_ms)]
        if waking:
            return max(0, min(waking) - self.disorder_ms - 1)
        newest = max(each.newest_ms for each in self.inputs.values())
        if not newest:
            return 0
        silent_ms = now_ms - max(each.heard_ms for each in self.inputs.values()) - self.idle_ms
        return max(0, newest - self.disorder_ms - 1 + round(silent_ms))

    def may_wait(self, name: str, *, lead_ms: int, now_ms: float) -> bool:
        """Returns whether an input is so far ahead of another active one that reading more only fills the state."""
        mine = self.inputs[name].newest_ms
        others = [
            each.newest_ms
            for other, each in self.inputs.items()
            if other != name and not self.is_idle(other, now_ms=now_ms)
        ]
        return bool(others) and mine - min(others) > lead_ms and min(others) > 0
