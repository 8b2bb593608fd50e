"""The state of one key: its impression, the waiting actions, and what was emitted."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OVERHEAD_BYTES", "Entry", "EntryStage", "Held", "pack_entries", "unpack_entries"]

OVERHEAD_BYTES = 400
"""Memory of an entry, its key and its timer; measured with 10^6 of them."""
_HEAD = struct.Struct("<IBqqiII")
"""Length of the key, stage, time, due, number of emitted actions or -1, number of held ones, length of the sample."""
_HELD = struct.Struct("<qi")
_ACTION = struct.Struct("<i")
_GONE = 255
"""Stage of a key that is stored elsewhere."""


class EntryStage(enum.IntEnum):
    """Stage in the lifetime of an entry."""

    EARLY = 0
    """Actions whose impression has not arrived."""
    OPEN = 1
    CLOSED = 2
    """The window has closed; the key is kept to detect late actions and duplicates."""


_STAGES = tuple(EntryStage)


class Held(NamedTuple):
    """An action that waits for its impression, or for the window to close."""

    time_ms: int
    action: int


@dataclass(slots=True)
class Entry:
    """The state of one key.

    `step` is the step in which it was last saved, 0: none; the code that saves owns that field.
    """

    stage: EntryStage
    time_ms: int
    """Time of the impression; without one, of the first action."""
    due_ms: int
    """Watermark at which the entry is closed or discarded."""
    sample: bytes = b""
    out: tuple[int, ...] | None = None
    """Actions of the last emitted example; None: none was emitted."""
    held: tuple[Held, ...] = ()
    step: int = 0


def pack_entries(entries: Iterable[tuple[bytes, Entry]], gone: Iterable[bytes] = ()) -> bytes:
    """Encodes keys with their entries, and keys that are stored elsewhere from now on."""
    parts: list[bytes] = []
    append, head = parts.append, _HEAD.pack
    for key, entry in entries:
        out, held, sample = entry.out, entry.held, entry.sample
        num_out = -1 if out is None else len(out)
        append(head(len(key), entry.stage, entry.time_ms, entry.due_ms, num_out, len(held), len(sample)))
        append(key)
        if out:
            parts += map(_ACTION.pack, out)
        for each in held:
            append(_HELD.pack(*each))
        append(sample)
    for key in gone:
        parts += (head(len(key), _GONE, 0, 0, -1, 0, 0), key)
    return b"".join(parts)


def unpack_entries(data: bytes, *, step: int = 0) -> Iterator[tuple[bytes, Entry | None]]:
    """Decodes the output of `pack_entries`, as of a step; None for a key that is stored elsewhere.

    Raises:
        ValueError: the bytes are truncated.
    """
    at = 0
    while at < len(data):
        try:
            key_bytes, stage, time_ms, due_ms, num_out, num_held, sample_bytes = _HEAD.unpack_from(data, at)
        except struct.error as error:
            raise ValueError(f"entries end at byte {len(data)} inside the head of one") from error
        begin_out = at + _HEAD.size + key_bytes
        begin_held = begin_out + max(0, num_out) * _ACTION.size
        begin_sample = begin_held + num_held * _HELD.size
        end = begin_sample + sample_bytes
        if end > len(data) or stage not in (*_STAGES, _GONE):
            raise ValueError(f"entries end at byte {len(data)}, the one at {at} of stage {stage} at {end}")
        key = data[at + _HEAD.size : begin_out]
        at = end
        if stage == _GONE:
            yield key, None
            continue
        out = None if num_out < 0 else tuple(each for (each,) in _ACTION.iter_unpack(data[begin_out:begin_held]))
        held = tuple(Held(*each) for each in _HELD.iter_unpack(data[begin_held:begin_sample])) if num_held else ()
        yield key, Entry(_STAGES[stage], time_ms, due_ms, data[begin_sample:end], out, held, step)
