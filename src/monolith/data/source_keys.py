"""The data source of samples: which flow each comes from, by the key of its name.

A key is in the lagrangex header of a record, or in the message itself. The header has priority, as in ByteDance
Monolith, which copied it into the message; if it has none (0), and without such a header, the message's own key is
used. Upstream left memory uninitialized there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith.data.records.records import Records
from monolith.data.records.sample_format import SampleFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["batch_sizes_of", "source_keys_of", "with_source_key"]

_KEY_FIELD = {SampleFormat.EXAMPLE: 103, SampleFormat.EXAMPLE_BATCH: 100, SampleFormat.INSTANCE: 100}
"""Number of the field that holds the key; tf.train.Example has none."""
_BATCH_SIZE_FIELD = 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def source_keys_of(records: Records | Sequence[bytes], sample: SampleFormat) -> npt.NDArray[np.int64]:
    """Returns the key of each record; 0 if neither header nor message has one.

    All records are scanned together, one outermost field of each after another.

    Raises:
        ValueError: only some of the records have headers.
    """
    if not isinstance(records, Records):
        records = Records.from_list(records)
    is_bare = records.has_source_keys is False
    header = np.zeros(len(records), np.int64) if is_bare else records.source_keys().astype(np.int64)
    if sample not in _KEY_FIELD or (len(header) and header.all()):
        return header
    own = _last_numbers(records, (_KEY_FIELD[sample],))[0].astype(np.int64) & 0xFFFFFFFF
    return np.where(header != 0, header, own)


def batch_sizes_of(records: Records | Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Returns the declared number of rows of each ExampleBatch."""
    records = records if isinstance(records, Records) else Records.from_list(records)
    return _last_numbers(records, (_BATCH_SIZE_FIELD,))[0].astype(np.int64)


def with_source_key(record: bytes, sample: SampleFormat, key: int) -> bytes:
    """Returns the message with this key in it; of a scalar that stands twice in a message, the last one counts.

    >>> with_source_key(b"", SampleFormat.INSTANCE, 256).hex()
    'a0068002'
    """
    if not key or sample not in _KEY_FIELD:
        return record
    return record + _varint_bytes(_KEY_FIELD[sample] << 3 | _VARINT) + _varint_bytes(key)


def _varint_bytes(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _last_numbers(records: Records, fields: tuple[int, ...]) -> list[npt.NDArray[np.uint64]]:
    """Returns for each field its last number in each message; 0 if missing, or if the message is malformed."""
    found = [np.zeros(len(records), np.uint64) for _ in fields]
    at, end = records.spans[::2].copy(), records.spans[::2] + records.spans[1::2]
    left = np.flatnonzero(at < end)
    while len(left):
        tags, at[left] = _varints(records.buffer, at[left], end[left])
        wires = (tags & np.uint64(7)).astype(np.int64)
        numbers, behind = _varints(records.buffer, at[left], end[left])
        for field, values in zip(fields, found, strict=True):
            is_field = tags == np.uint64(field << 3 | _VARINT)
            values[left[is_field]] = numbers[is_field]
        sizes = np.minimum(numbers, np.uint64(1 << 40)).astype(np.int64)
        steps = {_VARINT: behind, _BYTES: behind + sizes, _FIXED32: at[left] + 4, _FIXED64: at[left] + 8}
        # Other wire types are no longer written by anyone: such a message ends here.
        at[left] = np.select([wires == wire for wire in steps], list(steps.values()), end[left])
        left = left[at[left] < end[left]]
    return found


def _varints(
    buffer: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Returns a number from each position, and the position after it; the end if it is truncated or too long."""
    numbers = np.zeros(len(at), np.uint64)
    behind = end.copy()
    goes_on = np.ones(len(at), bool)
    for place in range(10):
        is_inside = goes_on & (at + place < end)
        if not is_inside.any():
            break
        bytes_here = buffer[np.minimum(at + place, len(buffer) - 1)]
        part = (bytes_here & 0x7F).astype(np.uint64) << np.uint64(min(7 * place, 63))
        numbers = np.where(is_inside, numbers | part, numbers)
        is_last = is_inside & (bytes_here < 0x80)
        behind = np.where(is_last, at + place + 1, behind)
        goes_on = is_inside & ~is_last
    return numbers, behind
