"""Encoding of the arguments and answers of calls that ranks make together: a head of plain values, and raw bytes."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from monolith.tables.batch import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["pack", "stamps_from_plain", "stamps_to_plain", "unpack"]

_LENGTH = struct.Struct("<Q")


def pack(head: Any, blobs: Sequence[bytes] = ()) -> bytes:
    """Encodes a head and raw bytes as one byte string."""
    text = json.dumps([head, [len(blob) for blob in blobs]]).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def unpack(data: bytes) -> tuple[Any, list[bytes]]:
    """Returns the arguments of `pack`."""
    begin = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    head, sizes = json.loads(data[_LENGTH.size : begin])
    blobs = []
    for size in sizes:
        blobs.append(data[begin : begin + size])
        begin += size
    return head, blobs


def stamps_to_plain(stamps: Iterable[BatchStamp]) -> list[list[Any]]:
    """Converts stamps to plain values."""
    return [[each.worker, each.seq, each.position.hex(), each.event_time_ms] for each in stamps]


def stamps_from_plain(found: Sequence[Sequence[Any]]) -> dict[int, BatchStamp]:
    """Converts plain values to stamps, by worker."""
    return {
        worker: BatchStamp(worker=worker, seq=seq, position=bytes.fromhex(position), event_time_ms=time)
        for worker, seq, position, time in found
    }
