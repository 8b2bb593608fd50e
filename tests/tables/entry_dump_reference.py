"""The original's dump files in plain Python, written from their description: slow, and independent of the core."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

Fields = dict[int, list[Any]]

OPTIMIZER_FIELDS = {
    "adagrad": (1, {"norm": 1}),
    "sgd": (2, {}),
    "ftrl": (3, {"zero": 1, "norm": 2}),
    "dynamic_wd_adagrad": (4, {"norm": 1, "last_update_step": 2}),
    "adadelta": (6, {"accum": 1, "accum_update": 2}),
    "adam": (7, {"m": 1, "v": 2, "beta1_power": 3, "beta2_power": 4}),
    "amsgrad": (8, {"m": 1, "v": 2, "vhat": 3, "beta1_power": 4, "beta2_power": 5}),
    "momentum": (9, {"n": 1}),
    "rmsprop": (11, {"n": 1}),
    "rmspropv2": (12, {"n": 1}),
    "group_ftrl": (13, {"zero": 1, "norm": 2}),
    "batch_softmax": (14, {"global_step": 1}),
    "group_adagrad": (15, {"grad_square_sum": 1}),
}
"""Kind to number of its message, and names of the message's fields to numbers."""


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def records(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(stream):
        (length,) = struct.unpack_from("<Q", stream, at)
        assert stream[at + 8 : at + 12] == masked(stream[at : at + 8])
        record = stream[at + 12 : at + 12 + length]
        assert stream[at + 12 + length : at + 16 + length] == masked(record)
        yield record
        at += 16 + length


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def floats(field: int, values: list[float]) -> bytes:
    return b"".join(bytes([field << 3 | 5]) + struct.pack("<f", value) for value in values)


def integer(field: int, value: int) -> bytes:
    return bytes([field << 3]) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def entry(key: int, weights: list[float], dumps: list[bytes], time: int) -> bytes:
    optimizer = b"".join(message(1, dump) for dump in dumps)
    return b"\x09" + struct.pack("<q", key) + floats(2, weights) + message(3, optimizer) + integer(4, time)


def metadata(name: str, entries: int) -> bytes:
    return message(1, name.encode()) + integer(2, entries)


def parse(content: bytes) -> Fields:
    """Field number to its values in order: floats, signed integers, or bytes of inner messages."""
    fields: Fields = {}
    at = 0
    while at < len(content):
        tag, at = _take_varint(content, at)
        if tag & 7 == 0:
            number, at = _take_varint(content, at)
            value: Any = number - 2**64 if number >= 2**63 else number
        elif tag & 7 == 1:
            (value,), at = struct.unpack_from("<q", content, at), at + 8
        elif tag & 7 == 5:
            (value,), at = struct.unpack_from("<f", content, at), at + 4
        else:
            length, at = _take_varint(content, at)
            value, at = content[at : at + length], at + length
        fields.setdefault(tag >> 3, []).append(value)
    assert at == len(content)
    return fields


def optimizer_fields(dump: bytes, kind: str) -> dict[str, list[Any]]:
    """Named values of one SingleOptimizerDump, which must be of this kind."""
    number, names = OPTIMIZER_FIELDS[kind]
    single = parse(dump)
    assert list(single) == [number]
    inner = parse(single[number][0])
    assert set(inner) <= set(names.values())
    return {name: inner.get(field, []) for name, field in names.items()}


def _take_varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while content[at] & 0x80:
        number |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | content[at] << shift, at + 1
