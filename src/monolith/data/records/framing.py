"""Layout of records in a file or a message: the bytes before each payload.

The grammar of every framing is in docs/formats/framings.md. All are read, some are also written. The core
(`core/data/framing.h`) defines the parts and the number of a framing; this module defines the names.
"""

from __future__ import annotations

import enum
from typing import Self

from monolith import _core

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
