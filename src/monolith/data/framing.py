"""How records lie in a file or a message: what stands in front of each payload.

The grammar of every framing is in docs/formats/framings.md. All are read; `PLAIN`, `SORT_ID` and `TFRECORD` are also
written.
"""

from __future__ import annotations

import enum
from typing import Self

_TFRECORD, _LAGRANGEX, _KAFKA_DUMP_PREFIX, _SORT_ID, _KAFKA_DUMP = 1, 2, 4, 8, 16
"""Bits of a framing, in the order in which the core takes them."""


class Framing(enum.Enum):
    """What stands in front of the payload of a record; numbers are 8-byte little-endian unless said."""

    PLAIN = 0
    """The length."""
    SORT_ID = _SORT_ID
    """Length of a sort id, sort id, length. What the original's file reader expects unless told otherwise."""
    KAFKA_DUMP = _KAFKA_DUMP
    """A number, length."""
    SORT_ID_KAFKA_DUMP = _SORT_ID | _KAFKA_DUMP
    """Length of a sort id, sort id, a number, length."""
    KAFKA_PREFIX = _KAFKA_DUMP_PREFIX
    """0 and a number, or the size of a sort id and the sort id; then the length."""
    SORT_ID_KAFKA_PREFIX = _SORT_ID | _KAFKA_DUMP_PREFIX
    """0, a number, length of a sort id, sort id; or size of a sort id and the sort id; then the length."""
    KAFKA_PREFIX_DUMP = _KAFKA_DUMP_PREFIX | _KAFKA_DUMP
    """As `KAFKA_PREFIX`, with a number in front of the length."""
    SORT_ID_KAFKA_PREFIX_DUMP = _SORT_ID | _KAFKA_DUMP_PREFIX | _KAFKA_DUMP
    """As `SORT_ID_KAFKA_PREFIX`, with a number in front of the length."""
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
        """The framing that the original's four switches mean.

        >>> Framing.of_options(has_sort_id=True, kafka_dump=True)
        <Framing.SORT_ID_KAFKA_DUMP: 24>
        """
        others = _KAFKA_DUMP_PREFIX * kafka_dump_prefix | _SORT_ID * has_sort_id | _KAFKA_DUMP * kafka_dump
        if lagrangex_header and others:
            raise ValueError("lagrangex_header excludes kafka_dump_prefix, has_sort_id and kafka_dump")
        return cls(_LAGRANGEX if lagrangex_header else others)

    @classmethod
    def of(cls, name: str | Self) -> Self:
        """The framing of this name, in any case."""
        if isinstance(name, cls):
            return name
        try:
            return cls[str(name).upper()]
        except KeyError:
            raise ValueError(f"framing must be one of {', '.join(m.name for m in cls)}, got {name!r}") from None

    @property
    def tail(self) -> int:
        """Bytes behind a payload."""
        return 4 if self is Framing.TFRECORD else 0


def source_key(name: str) -> int:
    """The data source key of a source's name, as a lagrangex header carries it: Java's string hash, shifted by 8 bits.

    >>> source_key("news")
    864736000
    """
    units = name.encode("utf-16-le")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "little")) & 0xFFFFFFFF
    return (value << 8) & 0xFFFFFFFF
