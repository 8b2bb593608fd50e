"""Row blocks written in plain Python from their byte grammar, independent of the core's writer; and bounded times."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith.tables.formats import HEADER, MAGIC, TRAILER, VERSION, BlockKind, RowBlock, padded

if TYPE_CHECKING:
    from collections.abc import Sequence

WORD_MASK = (1 << 64) - 1
NARROW_END = 1 << 48
"""Ids from here on, and negative ones, are wide."""
BELOW_BUCKET = (1 << 54) - 1
"""Bits of a mixed hash below those of the bucket."""
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected."""


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def mix64(word: int) -> int:
    """Mixes a word of 64 bits; a bijection."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD_MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD_MASK
    return word ^ (word >> 31)


@lru_cache(maxsize=1 << 16)
def bucket_of_id(key: int) -> int:
    """Returns the virtual bucket of an id: the top 10 bits of its mixed hash."""
    return mix64((key + GOLDEN_GAMMA) & WORD_MASK) >> 54


class RowName(NamedTuple):
    """The identity of a row of a table; the key of a wide id alone is not unique (docs/formats/buckets.md)."""

    bucket: int
    key: int


def name_of_id(key: int) -> RowName:
    """Returns the name of a key that is an id by itself."""
    return RowName(bucket_of_id(key), key)


def name_of_slot_id(slot: int, number: int, wide_slots: Sequence[int]) -> RowName:
    """Returns the name of an id, any int64, of one of the slots that share a table."""
    if 0 <= number < NARROW_END:
        return name_of_id(slot << 48 | number)
    mixed = mix64((number + GOLDEN_GAMMA) & WORD_MASK)
    word = 1 << 63 | sorted(wide_slots).index(slot) << 54 | mixed & BELOW_BUCKET
    return RowName(mixed >> 54, word - (1 << 64))


def build_block(
    kind: BlockKind, *, digest: int, table: int, bucket: int, epoch: int, rows: Sequence[tuple[int, int, bytes]]
) -> RowBlock:
    """Builds a block of (id, time, payload) rows; of tombstones the time is the removal's epoch, the payload empty."""
    row_bytes = len(rows[0][2]) if rows else 0
    payload = b"".join(row[2] for row in rows)
    header = HEADER.pack(MAGIC, VERSION, kind, 0, digest, table, bucket, len(rows), row_bytes, len(payload), epoch)
    keys = np.array([row[0] for row in rows], np.int64).tobytes()
    times = np.array([row[1] for row in rows], np.uint32).tobytes()
    return _finish(header + keys + _pad(times) + _pad(payload))


def build_filter_block(*, bucket: int, epoch: int, payload: bytes) -> RowBlock:
    """Builds a block with the admission counts of one bucket."""
    header = HEADER.pack(MAGIC, VERSION, BlockKind.FILTER, 0, 0, 0, bucket, 0, 1, len(payload), epoch)
    return _finish(header + _pad(payload))


def _pad(data: bytes) -> bytes:
    return data.ljust(padded(len(data)), b"\0")


def _finish(body: bytes) -> RowBlock:
    return RowBlock(body + TRAILER.pack(crc32c(body), 0))


_DAY = 86400


def bounded_times(times: Sequence[int], newest: int) -> tuple[list[int], int]:
    """Bounds how far one update may move the expiry clock; returns the times, and how many of them were changed.

    A time more than a day beyond the newest so far is set back to where the data stands: the newest so far or, if that
    is later, the lower median of the update's times, at most a day beyond the newest so far. A store that has seen no
    time takes the median for it, and leaves four times the way from the lower quartile to it, if that is more than a
    day.

    >>> bounded_times([100, 4_000_000_000, 170], newest=90)
    ([100, 170, 170], 1)
    """
    if not times:
        return [], 0
    in_order = sorted(times)
    quartile, median = (in_order[(len(times) - 1) // part] for part in (4, 2))
    limit = newest + _DAY if newest else median + max(_DAY, 4 * (median - quartile))
    here = min(max(newest, median), limit)
    return [time if time <= limit else here for time in times], sum(time > limit for time in times)
