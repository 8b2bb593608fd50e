"""Mutations of bytes."""

from __future__ import annotations

import random


def _flip(content: bytearray, draw: random.Random) -> bytes:
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        if content:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def _cut(content: bytearray, draw: random.Random) -> bytes:
    return bytes(content[: draw.randrange(len(content) + 1)])


def _lengthen(content: bytearray, draw: random.Random) -> bytes:
    return bytes(content) + draw.randbytes(draw.randint(1, 64))


def _blank(content: bytearray, draw: random.Random) -> bytes:
    begin = draw.randrange(len(content) + 1)
    end = min(len(content), begin + draw.randint(1, 4096))
    content[begin:end] = bytes(end - begin)
    return bytes(content)


def _repeat(content: bytearray, draw: random.Random) -> bytes:
    begin = draw.randrange(len(content) + 1)
    return bytes(content[:begin] + content[max(0, begin - draw.randint(1, 256)) :])


def _replace(content: bytearray, draw: random.Random) -> bytes:
    return draw.randbytes(len(content))


MUTATIONS = {
    "flipped bits": _flip,
    "a missing end": _cut,
    "a longer end": _lengthen,
    "zeros": _blank,
    "a repeated part": _repeat,
    "other bytes": _replace,
}
