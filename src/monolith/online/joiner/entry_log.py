"""Which saved steps still have the last word on an entry: what may be deleted, and what must be saved anew first.

Every step saves the entries that came or changed in it, in one piece. Steps are deleted from the oldest one on: then a
later word on a key is never deleted before an earlier one, and nobody has to look for what an entry was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from monolith.online.joiner.entry import Entry

__all__ = ["EntryLog"]

_SLACK_BYTES = 1 << 20
"""Of steps beyond twice what is known: a small state is not saved anew all the time."""


@dataclass(slots=True)
class _Step:
    keys: Collection[bytes]
    num_bytes: int
    num_live: int


class EntryLog:
    """The steps that are on disk. Belongs to one thread; whoever owns it does the saving."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self.num_bytes = 0
        """Of all steps."""

    def add(self, number: int, entries: Mapping[bytes, Entry], *, num_bytes: int) -> None:
        """A step saved these entries; where they were saved before does not count any longer."""
        steps = self._steps
        for entry in entries.values():
            if entry.step:
                steps[entry.step].num_live -= 1
            entry.step = number
        steps[number] = _Step(list(entries), num_bytes, len(entries))
        self.num_bytes += num_bytes

    def release(self, steps: Iterable[int]) -> None:
        """An entry of each of these steps was forgotten, or is kept elsewhere."""
        for step in steps:
            if step:
                self._steps[step].num_live -= 1

    def stale(self, entries: Mapping[bytes, Entry], *, known_bytes: int) -> dict[bytes, Entry]:
        """What of the oldest steps must be saved anew, so that they can go: some, when steps hold much that is old."""
        found: dict[bytes, Entry] = {}
        left = self.num_bytes
        for number, step in self._steps.items():
            if left <= 2 * known_bytes + _SLACK_BYTES:
                break
            left -= step.num_bytes
            if step.num_live:
                for key in step.keys:
                    entry = entries.get(key)
                    if entry is not None and entry.step == number:
                        found[key] = entry
        return found

    def take_dead(self) -> int:
        """Forgets the oldest steps that nothing needs; the number of the last one, 0: there are none."""
        last = 0
        for number, step in self._steps.items():
            if step.num_live:
                break
            last = number
            self.num_bytes -= step.num_bytes
        for number in [number for number in self._steps if number <= last] if last else ():
            del self._steps[number]
        return last
