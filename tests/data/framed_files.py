"""Files of every framing, written by a few lines that share nothing with the package."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c

from monolith.data import Framing
from monolith.data.protos.example_pb2 import Example


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def masked(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(framing: Framing, payload: bytes, sort_id: bytes = b"", word: int = 0) -> bytes:
    """One record; `word` is what stands in numbers that readers ignore."""
    body = u64(len(payload)) + payload
    if framing is Framing.TFRECORD:
        return u64(len(payload)) + masked(u64(len(payload))) + payload + masked(payload)
    if framing is Framing.LAGRANGEX:
        return u64(word) + body
    name = framing.name
    head = b""
    if "PREFIX" in name:
        head = u64(len(sort_id)) + sort_id if sort_id else u64(0) + u64(word)
        if not sort_id and "SORT_ID" in name:
            head += u64(0)
    elif "SORT_ID" in name:
        head = u64(len(sort_id)) + sort_id
    if "DUMP" in name:
        head += u64(word)
    return head + body


def framed(framing: Framing, payloads: Sequence[bytes], sort_id: bytes = b"", word: int = 0) -> bytes:
    return b"".join(frame(framing, payload, sort_id, word) for payload in payloads)


def samples(count: int) -> list[bytes]:
    """Different Examples of differing length."""
    records = []
    for number in range(count):
        example = Example(label=[float(number % 2)])
        example.line_id.req_time = 1_700_000_000 + number
        ids = example.named_feature.add(name="user", id=1).feature.fid_v2_list.value
        ids.extend((1 << 48) + number * 7 + place for place in range(number % 5))
        records.append(example.SerializeToString())
    return records
