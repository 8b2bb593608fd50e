"""Numbered examples, as stored in the state and in an output file: records with a sort id.

The sort id of an example is its number (8 bytes, big-endian, so that ids sort as numbers do), the earliest time in
milliseconds at which it could be known (8 bytes, big-endian), and the request. Numbers of a partition begin at 1,
without gaps.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith import _core
from monolith.data.records.framing import Framing
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["NumberedExample", "pack_examples", "split_examples", "whole_examples"]

_LENGTH = struct.Struct("<Q")
_ID = struct.Struct(">QQ")
_LARGEST = (1 << 31) - 1


class NumberedExample(NamedTuple):
    """An example of a joiner's output."""

    number: int
    known_ms: int
    request: bytes
    example: bytes


def pack_examples(examples: Iterable[NumberedExample | tuple[int, int, bytes, bytes]]) -> bytes:
    """Encodes examples as records; each may be a plain tuple of the fields of a `NumberedExample`."""
    parts: list[bytes] = []
    length, head, id_bytes = _LENGTH.pack, _ID.pack, _ID.size
    for number, known_ms, request, example in examples:
        parts += (length(id_bytes + len(request)), head(number, known_ms), request, length(len(example)), example)
    return b"".join(parts)


def split_examples(data: bytes) -> Iterator[NumberedExample]:
    """Decodes the output of `pack_examples`.

    Raises:
        DataLossError: the bytes are not a sequence of such records.
    """
    examples, end = whole_examples(data)
    if end != len(data):
        raise DataLossError(f"numbered examples end at byte {end} of {len(data)} inside a record")
    return iter(examples)


def whole_examples(data: bytes) -> tuple[list[NumberedExample], int]:
    """Returns the complete examples, and the offset at which the last one ends.

    Raises:
        DataLossError: the bytes are not records of a joiner.
    """
    spans, end, _, problem, reason, _ = _core.scan_frames(
        np.frombuffer(data, np.uint8),
        0,
        framing=Framing.SORT_ID.value,
        at_end=False,
        max_record_bytes=_LARGEST,
        max_records=1 << 62,
    )
    if problem:
        raise DataLossError(f"byte {end}: not the output of a joiner: {reason}")
    examples: list[NumberedExample] = []
    at = 0
    for begin, length in spans.reshape(-1, 2).tolist():
        sort_id = data[at + _LENGTH.size : begin - _LENGTH.size]
        if len(sort_id) < _ID.size:
            raise DataLossError(f"byte {at}: not the output of a joiner: a sort id of {len(sort_id)} bytes")
        number, known_ms = _ID.unpack_from(sort_id)
        examples.append(NumberedExample(number, known_ms, sort_id[_ID.size :], data[begin : begin + length]))
        at = begin + length
    return examples, at
