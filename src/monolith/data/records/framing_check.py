"""Checks the start of a file for the declared framing.

A wrong framing need not fail by itself: a plain file read as one with sort ids gives every second sample and no error.
So the first records are checked, and framings that fit them better are named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import _core
from monolith.data.records.compression import looks_like
from monolith.data.records.framing import Framing, SampleFormat

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_NUM_LOOKED_AT = 8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = frozenset({_VARINT, _FIXED64, _BYTES, _FIXED32})
_FIELDS: dict[SampleFormat, dict[int, frozenset[int]]] = {
    SampleFormat.EXAMPLE: {
        1: frozenset({_BYTES}),
        2: frozenset({_BYTES}),
        100: frozenset({_BYTES}),
        101: frozenset({_BYTES, _FIXED32}),
        102: frozenset({_FIXED32}),
        103: frozenset({_VARINT}),
    },
    SampleFormat.EXAMPLE_BATCH: {
        1: frozenset({_BYTES}),
        2: frozenset({_BYTES}),
        3: frozenset({_VARINT}),
        100: frozenset({_VARINT}),
    },
    SampleFormat.INSTANCE: {
        1: frozenset({_BYTES, _FIXED64}),
        2: frozenset({_BYTES, _FIXED32}),
        3: frozenset({_BYTES, _FIXED32}),
        4: frozenset({_FIXED32}),
        5: frozenset({_BYTES}),
        6: frozenset({_BYTES, _FIXED32}),
        7: frozenset({_BYTES}),
        8: frozenset({_BYTES, _FIXED64}),
        9: frozenset({_BYTES}),
        100: frozenset({_VARINT}),
    },
    SampleFormat.TF_EXAMPLE: {1: frozenset({_BYTES})},
}
"""The fields of each message and how they may stand on the wire."""


class _Explanation:
    """The start of a file, parsed by one framing."""

    def __init__(self, head: npt.NDArray[np.uint8], framing: Framing, sample: SampleFormat, *, at_end: bool) -> None:
        spans, consumed, _, problem, _, _ = _core.scan_frames(
            head, 0, framing=framing.value, at_end=at_end, max_record_bytes=1 << 31, max_records=_NUM_LOOKED_AT
        )
        pairs = spans.reshape(-1, 2)
        payloads = [head[offset : offset + length].tobytes() for offset, length in pairs.tolist()]
        self.framing = framing
        self.is_read = not problem and bool(payloads)
        self.is_sure = self.is_read and all(payload and _is_message(payload, _FIELDS[sample]) for payload in payloads)
        self.is_possible = self.is_sure or (self.is_read and all(_is_message(payload, None) for payload in payloads))
        """Every payload is some message, perhaps an empty one or one of fields that are not known here."""
        self.share = sum(map(len, payloads)) / consumed if consumed else 0.0
        """Share of the bytes that are payload."""


def better_framings(
    head: npt.NDArray[np.uint8], framing: Framing, sample: SampleFormat, *, at_end: bool
) -> list[Framing]:
    """Returns framings that fit the start of a stream better than the declared one; empty if that may be right.

    Args:
        head: The first bytes.
        framing: Declared framing of the stream.
        sample: Declared content of its records; plain bytes cannot be checked.
        at_end: Whether the head is the complete stream.
    """
    if sample is SampleFormat.PLAINTEXT or not len(head):
        return []
    declared = _Explanation(head, framing, sample, at_end=at_end)
    # What passes for a sort id may be the samples of a framing that has none.
    if declared.is_sure and not framing.has_sized_head:
        return []
    others = (_Explanation(head, other, sample, at_end=at_end) for other in Framing if other is not framing)
    better = [other for other in others if other.is_sure]
    # What is possible loses only to what leaves no more bytes unexplained; what is sure, to what leaves fewer.
    if declared.is_sure:
        better = [other for other in better if other.share > declared.share]
    elif declared.is_possible:
        better = [other for other in better if other.share >= declared.share]
    best = max((other.share for other in better), default=0.0)
    return [other.framing for other in better if other.share == best]


def framings_of(head: npt.NDArray[np.uint8], sample: SampleFormat, *, at_end: bool) -> list[Framing]:
    """Framings that explain the start of a stream, those that leave the fewest bytes unexplained."""
    if sample is SampleFormat.PLAINTEXT or not len(head):
        return []
    sure = [
        explanation
        for explanation in (_Explanation(head, framing, sample, at_end=at_end) for framing in Framing)
        if explanation.is_sure
    ]
    best = max((explanation.share for explanation in sure), default=0.0)
    return [explanation.framing for explanation in sure if explanation.share == best]


def is_sample(payload: bytes, sample: SampleFormat) -> bool:
    """Returns whether these bytes are a message of this format, by its outermost fields; plain bytes always are."""
    return sample is SampleFormat.PLAINTEXT or _is_message(payload, _FIELDS[sample])


def diagnosis(head: npt.NDArray[np.uint8], framing: Framing, sample: SampleFormat, *, at_end: bool) -> str:
    """Returns a suggestion for errors that may be caused by a wrong framing or compression."""
    if head[:4].tobytes() == b"PAR1":
        return "the file is Parquet"
    if (compressed := looks_like(head[:4].tobytes())) is not None:
        return f"the stream starts like {compressed.name}; give its compression"
    if better := better_framings(head, framing, sample, at_end=at_end):
        return f"its start fits the framing {' or '.join(other.name for other in better)}, not {framing.name}"
    return f"is {framing.name} its framing?"


def _is_message(payload: bytes, fields: dict[int, frozenset[int]] | None) -> bool:
    """Returns whether these bytes are a message of these fields, or of any if none are given."""
    at, end = 0, len(payload)
    while at < end:
        tag, at = _varint(payload, at)
        if at < 0 or (tag & 7) not in (_WIRE_TYPES if fields is None else fields.get(tag >> 3, ())):
            return False
        at = _behind_field(payload, at, tag & 7)
        if not 0 <= at <= end:
            return False
    return True


def _behind_field(payload: bytes, at: int, wire: int) -> int:
    if wire == _FIXED64:
        return at + 8
    if wire == _FIXED32:
        return at + 4
    number, at = _varint(payload, at)
    return at if wire == _VARINT or at < 0 else at + number


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """Returns a number and the position after it; position -1 if it is truncated or too long."""
    number = shift = 0
    while at < len(payload) and shift < 70:
        byte = payload[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    return 0, -1
