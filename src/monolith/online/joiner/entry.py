"""What is known of one key: its impression, the actions that wait for it, and what went out."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Entry", "Stage"]

_OVERHEAD_BYTES = 400
"""Of an entry, its key and its timer in memory; measured with 10^6 of them."""
_HELD = struct.Struct("<qi")
_ACTION = struct.Struct("<i")


class Stage(enum.IntEnum):
    """Where an entry is in its life."""

    EARLY = 0
    """Actions whose impression has not come."""
    OPEN = 1
    CLOSED = 2
    """The window has closed; the key is known for the sake of late actions and of duplicates."""


class Held(NamedTuple):
    """An action that waits: for its impression, or for the window to close."""

    time_ms: int
    action: int


@dataclass(slots=True)
class Entry:
    """One key. `row` is its place on disk, 0 before it has one; whoever keeps it there owns that field."""

    stage: Stage
    time_ms: int
    """Of the impression; without one, of the first action."""
    due_ms: int
    """When the time of events has come this far, it is closed or forgotten."""
    sample: bytes = b""
    out: tuple[int, ...] | None = None
    """The actions of the example that went out last; None: none did."""
    held: tuple[Held, ...] = ()
    row: int = 0

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, about."""
        return _OVERHEAD_BYTES + len(self.sample)

    def to_row(self) -> tuple[int, int, int, bytes | None, bytes, bytes]:
        """The entry as columns: due, stage, time, out, held, sample."""
        out = None if self.out is None else b"".join(map(_ACTION.pack, self.out))
        held = b"".join(_HELD.pack(*each) for each in self.held) if self.held else b""
        return self.due_ms, int(self.stage), self.time_ms, out, held, self.sample

    @classmethod
    def from_row(cls, row: int, columns: Sequence[Any]) -> Entry:
        """What `to_row` gave, at its place on disk."""
        due_ms, stage, time_ms, out, held, sample = columns
        return cls(
            Stage(stage),
            time_ms,
            due_ms,
            sample,
            None if out is None else tuple(action for (action,) in _ACTION.iter_unpack(out)),
            tuple(Held(*each) for each in _HELD.iter_unpack(held)),
            row,
        )
