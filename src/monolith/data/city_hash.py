"""CityHash64 (version 1.1) of strings, for ids of ByteDance Monolith. The core has it for complete columns."""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_MUL = 0x9DDFEA08EB382D69


def city_hash64_of_text(text: str | bytes) -> int:
    """Returns the hash of a text, its bytes in UTF-8, from 0 to 2**64 - 1.

    >>> city_hash64_of_text("")
    11160318154034397263
    """
    data = text.encode() if isinstance(text, str) else text
    size = len(data)
    if size <= 16:
        return _up_to_16(data, size)
    if size <= 32:
        return _from_17_to_32(data, size)
    return _from_33_to_64(data, size) if size <= 64 else _long(data, size)


def _word(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def _half(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _rotate(x: int, bits: int) -> int:
    x &= _MASK
    return (x >> bits | x << (64 - bits)) & _MASK


def _mix(x: int) -> int:
    x &= _MASK
    return x ^ (x >> 47)


def _pair(u: int, v: int, mul: int) -> int:
    v &= _MASK
    a = _mix((u & _MASK ^ v) * mul)
    return _mix((v ^ a) * mul) * mul & _MASK


def _reversed(x: int) -> int:
    return int.from_bytes((x & _MASK).to_bytes(8, "little"), "big")


def _up_to_16(s: bytes, size: int) -> int:
    mul = _K2 + size * 2
    if size >= 8:
        a, b = _word(s, 0) + _K2, _word(s, size - 8)
        return _pair(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)
    if size >= 4:
        return _pair(size + (_half(s, 0) << 3), _half(s, size - 4), mul)
    if size == 0:
        return _K2
    y, z = s[0] + (s[size // 2] << 8), size + (s[-1] << 2)
    return _mix(y * _K2 & _MASK ^ z * _K0 & _MASK) * _K2 & _MASK


def _from_17_to_32(s: bytes, size: int) -> int:
    mul = _K2 + size * 2
    a, b = _word(s, 0) * _K1, _word(s, 8)
    c, d = _word(s, size - 8) * mul, _word(s, size - 16) * _K2
    return _pair(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, mul)


def _from_33_to_64(s: bytes, size: int) -> int:
    mul = _K2 + size * 2
    a, b = _word(s, 0) * _K2, _word(s, 8)
    c, d = _word(s, size - 24), _word(s, size - 32)
    e, f = _word(s, 16) * _K2, _word(s, 24) * 9
    g, h = _word(s, size - 8), _word(s, size - 16) * mul
    u = _rotate(a + g, 43) + (_rotate(b, 30) + c) * 9
    v = ((a + g) & _MASK ^ d) + f + 1
    w = _reversed((u + v) * mul) + h
    x = _rotate(e + f, 42) + c
    y = (_reversed((v + w) * mul) + g) * mul
    z = e + f + c
    p = _reversed((x + z) * mul + y) + b
    return (_mix((z + p) * mul + d + h) * mul + x) & _MASK


def _weak(s: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    a += _word(s, at)
    b = _rotate(b + a + _word(s, at + 24), 21)
    c = a
    a += _word(s, at + 8) + _word(s, at + 16)
    return (a + _word(s, at + 24)) & _MASK, (b + _rotate(a, 44) + c) & _MASK


def _long(s: bytes, size: int) -> int:
    x = _word(s, size - 40)
    y = _word(s, size - 16) + _word(s, size - 56)
    z = _pair(_word(s, size - 48) + size, _word(s, size - 24), _MUL)
    v = _weak(s, size - 64, size, z)
    w = _weak(s, size - 32, y + _K1, x)
    x = x * _K1 + _word(s, 0)
    for at in range(0, (size - 1) & ~63, 64):
        x = _rotate(x + y + v[0] + _word(s, at + 8), 37) * _K1 & _MASK
        y = _rotate(y + v[1] + _word(s, at + 48), 42) * _K1
        x ^= w[1]
        y += v[0] + _word(s, at + 40)
        z = _rotate(z + w[0], 33) * _K1
        v = _weak(s, at, v[1] * _K1, x + w[0])
        w = _weak(s, at + 32, z + w[1], y + _word(s, at + 16))
        z, x = x, z
    return _pair(_pair(v[0], w[0], _MUL) + _mix(y) * _K1 + z, _pair(v[1], w[1], _MUL) + x, _MUL)
