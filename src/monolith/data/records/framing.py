"""Layout of records in a file or a message: the bytes before each payload.

The grammar of every framing is in docs/formats/framings.md. All are read, some are also written. The core
(`core/data/framing.h`) defines the parts and the number of a framing; this module defines the names.

A wrong framing need not fail by itself: a plain file read as one with sort ids gives every second sample and no error.
So the first records of a file are checked, and framings that fit them better are named.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Self

from monolith import _core
from monolith.data.records.compression import looks_like

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_TFRECORD = _core.FramingPart.TFRECORD.value
_LAGRANGEX = _core.FramingPart.LAGRANGEX.value
_KAFKA_DUMP_PREFIX = _core.FramingPart.KAFKA_DUMP_PREFIX.value
_SORT_ID = _core.FramingPart.SORT_ID.value
_KAFKA_DUMP = _core.FramingPart.KAFKA_DUMP.value

LAGRANGEX_HEAD = 16
"""Bytes in front of a payload of `LAGRANGEX`: the word that carries type and data source, and the length."""
_TYPE_BITS = 8
"""Lowest bits of that word; the key of the data source has the others of the lower half."""
SOURCE_KEY_MASK = 0xFFFFFFFF >> _TYPE_BITS << _TYPE_BITS
"""Bits of the key in the lower half of that word."""


class Framing(enum.Enum):
    """The bytes before the payload of a record; numbers are 8-byte little-endian unless noted."""

    PLAIN = 0
    """The length."""
    SORT_ID = _SORT_ID
    """Length of a sort id, sort id, length. The default of ByteDance Monolith's file reader."""
    KAFKA_DUMP = _KAFKA_DUMP
    """A number, length."""
    SORT_ID_KAFKA_DUMP = _SORT_ID | _KAFKA_DUMP
    """Length of a sort id, sort id, a number, length."""
    KAFKA_PREFIX = _KAFKA_DUMP_PREFIX
    """0 and a number, or the size of a sort id and the sort id; then the length."""
    SORT_ID_KAFKA_PREFIX = _SORT_ID | _KAFKA_DUMP_PREFIX
    """0, a number, length of a sort id, sort id; or size of a sort id and the sort id; then the length."""
    KAFKA_PREFIX_DUMP = _KAFKA_DUMP_PREFIX | _KAFKA_DUMP
    """As `KAFKA_PREFIX`, with a number before the length."""
    SORT_ID_KAFKA_PREFIX_DUMP = _SORT_ID | _KAFKA_DUMP_PREFIX | _KAFKA_DUMP
    """As `SORT_ID_KAFKA_PREFIX`, with a number before the length."""
    LAGRANGEX = _LAGRANGEX
    """A number that carries the record's type and its data source, length."""
    TFRECORD = _TFRECORD
    """Length, its masked CRC-32C (4 bytes), payload, masked CRC-32C of the payload (4 bytes)."""

    @classmethod
    def of_options(
        cls,
        *,
        lagrangex_header: bool = False,
        kafka_dump_prefix: bool = False,
        has_sort_id: bool = False,
        kafka_dump: bool = False,
    ) -> Self:
        """Returns the framing of upstream's four switches.

        >>> Framing.of_options(has_sort_id=True, kafka_dump=True)
        <Framing.SORT_ID_KAFKA_DUMP: 24>
        """
        others = _KAFKA_DUMP_PREFIX * kafka_dump_prefix | _SORT_ID * has_sort_id | _KAFKA_DUMP * kafka_dump
        if lagrangex_header and others:
            raise ValueError("lagrangex_header excludes kafka_dump_prefix, has_sort_id and kafka_dump")
        return cls(_LAGRANGEX if lagrangex_header else others)

    @classmethod
    def of(cls, name: str | Self) -> Self:
        """Returns the framing of this name, case-insensitive."""
        if isinstance(name, cls):
            return name
        try:
            return cls[str(name).upper()]
        except KeyError:
            raise ValueError(f"framing must be one of {', '.join(m.name for m in cls)}, got {name!r}") from None

    @property
    def tail(self) -> int:
        """Number of bytes after a payload."""
        return _core.framing_tail(self.value)

    @property
    def is_written(self) -> bool:
        """Whether files of this framing can be written."""
        return self in {Framing.PLAIN, Framing.SORT_ID, Framing.TFRECORD}

    @property
    def has_sized_head(self) -> bool:
        """Returns whether a part of the header has a size field: samples of another framing may then match it."""
        return bool(self.value & (_SORT_ID | _KAFKA_DUMP_PREFIX))


def source_key(name: str) -> int:
    """Returns the key of a data source's name in a lagrangex header: Java's string hash, shifted by 8 bits.

    >>> source_key("news")
    864736000
    """
    units = name.encode("utf-16-le")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "little")) & 0xFFFFFFFF
    return (value << _TYPE_BITS) & SOURCE_KEY_MASK


class SampleFormat(enum.Enum):
    """The message of a record; the first four numbers are those of ByteDance Monolith's ``PbType``."""

    INSTANCE = 1
    """One sample, its v1 ids in one flat list (``parser.proto.Instance``)."""
    EXAMPLE_BATCH = 2
    """Many samples, column by column (``monolith.io.proto.ExampleBatch``)."""
    EXAMPLE = 3
    """One sample of named features (``monolith.io.proto.Example``)."""
    PLAINTEXT = 4
    """Bytes that are left as they are."""
    TF_EXAMPLE = 5
    """``tf.train.Example``."""

    @classmethod
    def of(cls, name: str | Self) -> Self:
        """Returns the format of this name, in any case and with or without the underscore, as flags give it.

        >>> SampleFormat.of("ExampleBatch")
        <SampleFormat.EXAMPLE_BATCH: 2>
        """
        if isinstance(name, cls):
            return name
        normalized = str(name).replace("_", "").lower()
        for member in cls:
            if member.name.replace("_", "").lower() == normalized:
                return member
        raise ValueError(f"sample format must be one of {', '.join(m.name for m in cls)}, got {name!r}")


_NUM_LOOKED_AT = 8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = frozenset({_VARINT, _FIXED64, _BYTES, _FIXED32})
_FIELDS: dict[SampleFormat, dict[int, set[int]]] = {
    SampleFormat.EXAMPLE: {_BYTES: {1, 2, 100, 101}, _FIXED32: {101, 102}, _VARINT: {103}},
    SampleFormat.EXAMPLE_BATCH: {_BYTES: {1, 2}, _VARINT: {3, 100}},
    SampleFormat.INSTANCE: {_BYTES: {1, 2, 3, 5, 6, 7, 8, 9}, _FIXED32: {2, 3, 4, 6}, _FIXED64: {1, 8}, _VARINT: {100}},
    SampleFormat.TF_EXAMPLE: {_BYTES: {1}},
}
"""Of each message: wire type -> the fields that may have it."""


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

    Plain bytes cannot be checked. `at_end`: the head is the complete stream.
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
    return _best(better)


def framings_of(head: npt.NDArray[np.uint8], sample: SampleFormat, *, at_end: bool) -> list[Framing]:
    """Framings that explain the start of a stream, those that leave the fewest bytes unexplained."""
    if sample is SampleFormat.PLAINTEXT or not len(head):
        return []
    explanations = (_Explanation(head, framing, sample, at_end=at_end) for framing in Framing)
    return _best([explanation for explanation in explanations if explanation.is_sure])


def _best(explanations: list[_Explanation]) -> list[Framing]:
    best = max((explanation.share for explanation in explanations), default=0.0)
    return [explanation.framing for explanation in explanations if explanation.share == best]


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


def _is_message(payload: bytes, fields: dict[int, set[int]] | None) -> bool:
    """Returns whether these bytes are a message of these fields, or of any if none are given."""
    at, end = 0, len(payload)
    while at < end:
        tag, at = _varint(payload, at)
        wire = tag & 7
        if at < 0 or (wire not in _WIRE_TYPES if fields is None else tag >> 3 not in fields.get(wire, ())):
            return False
        at = _behind_field(payload, at, wire)
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
