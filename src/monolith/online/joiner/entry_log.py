"""Tracks which saved steps hold the latest version of an entry: which may be deleted, and what to rewrite first.

Every step saves the entries that were added or changed in it as one blob. Steps are deleted from the oldest one on, so
that a later version of a key is never deleted before an earlier one, and older versions need no lookup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from monolith.online.joiner.entry import Entry

__all__ = ["EntryLog"]

_SLACK_BYTES = 1 << 20
"""Bytes of steps allowed beyond twice the live entries, so that a small state is not rewritten all the time."""


@dataclass(slots=True)
class _Step:
    keys: Collection[bytes]
    num_bytes: int
    num_live: int


class EntryLog:
    """The steps on disk. Not thread-safe; the owner does the saving."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self.num_bytes = 0
        """Total size of all steps."""

    def add(self, number: int, entries: Mapping[bytes, Entry], *, num_bytes: int) -> None:
        """Records that a step saved these entries, which supersedes earlier saves."""
        steps = self._steps
        for entry in entries.values():
            if entry.step:
                steps[entry.step].num_live -= 1
            entry.step = number
        steps[number] = _Step(list(entries), num_bytes, len(entries))
        self.num_bytes += num_bytes

    def release(self, steps: Iterable[int]) -> None:
        """Records that an entry of each of these steps was discarded, or is stored elsewhere."""
        for step in steps:
            if step:
                self._steps[step].num_live -= 1

    def stale(self, entries: Mapping[bytes, Entry], *, known_bytes: int) -> dict[bytes, Entry]:
        """Returns the live entries to rewrite so that old steps can be deleted; none if there is little garbage."""
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
        """Drops the oldest steps without live entries; returns the number of the last one, 0 if there is none."""
        last = 0
        for number, step in self._steps.items():
            if step.num_live:
                break
            last = number
            self.num_bytes -= step.num_bytes
        for number in [number for number in self._steps if number <= last] if last else ():
            del self._steps[number]
        return last
