"""Texts as ids: a hash of the column's name and the text, as `docs/formats/text_ids.md` states it.

Also CityHash64 (version 1.1) of one text, for ids of ByteDance Monolith; the core has it for complete columns.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith import _core, ids
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    from torch import Tensor


def text_ids(column: str, texts: Iterable[str | bytes]) -> Tensor:
    """Returns the id of each text in a column of this name, int64: those that datasets make of the same texts.

    >>> text_ids("user", ["ann", "bob"])
    tensor([-213027350075802612, 9182411650582254010])

    Raises:
        TypeError: a text alone, or values that are no texts.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(f"text_ids: expected texts, got the one text {texts!r}; put it into a list")
    return torch.from_numpy(_core.text_ids(column, *_packed(list(texts))))


@dataclass(frozen=True, slots=True)
class TextColumn:
    """How the strings of a column become ids. A `Batch` has it for its columns, and an export keeps it for requests.

    >>> TextColumn("genres", separator="|").ids(["Action|Comedy", ""])
    Ragged([[-6603237932122289224, 3467581892942577684], []], dtype=torch.int64)
    """

    name: str
    """Name of the column with which equal strings share ids: it is part of the hash."""
    separator: str | None = None
    """Stands between the values of a text."""
    slot: int | None = None
    """Put into every id, of the v2 layout."""
    length: int | None = None
    """Makes the column a padded int64 [rows, length]."""

    def __post_init__(self) -> None:
        """Checks the types too, as what it is made of may come from a file.

        Raises:
            TypeError: a field of another type.
            ValueError: an empty separator, or a slot or length out of range.
        """
        for field, kinds in (("name", str), ("separator", str | None), ("slot", int | None), ("length", int | None)):
            if not isinstance(value := getattr(self, field), kinds) or isinstance(value, bool):
                raise TypeError(f"TextColumn: {field} must be {kinds}, got {value!r}")
        if self.separator == "":
            raise ValueError("TextColumn: separator must not be empty")
        if self.slot is not None and not 0 <= self.slot < ids.NUM_SLOTS_V2:
            raise ValueError(f"TextColumn: slot must be from 0 to {ids.NUM_SLOTS_V2 - 1}, got {self.slot}")
        if self.length is not None and not 0 <= self.length <= _MOST_PADDED:
            raise ValueError(f"TextColumn: length must be from 0 to {_MOST_PADDED}, got {self.length}")

    def ids(self, texts: Sequence[str | bytes], splits: Tensor | None = None) -> Tensor | Ragged:
        """Returns the column of these texts: int64 [rows], or `Ragged` where a row may have several values.

        Args:
            texts: Of all rows.
            splits: Row splits of the texts; None: each is a row.

        Raises:
            TypeError: values that are no texts.
        """
        return self.ids_of_packed(*_packed(texts), splits)

    def ids_of_packed(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], splits: Tensor | None = None
    ) -> Tensor | Ragged:
        """Returns the column of texts that lie end to end.

        Args:
            data: Bytes of all texts.
            offsets: Where each begins, and the last one ends.
            splits: Row splits of the texts; None: each is a row.
        """
        if self.separator is not None:
            data, offsets, counts = _split(data, offsets, self.separator.encode())
            splits = counts if splits is None else counts[splits]
        text_hashes = torch.from_numpy(_core.text_ids(self.name, data, offsets))
        if self.slot is not None:
            text_hashes = ids.pack_v2(self.slot, text_hashes)
        if splits is None and self.length is None:
            return text_hashes
        ragged = Ragged(text_hashes, torch.arange(len(offsets)) if splits is None else splits, validate=False)
        return ragged if self.length is None else ragged.to_padded(length=self.length)


_MOST_PADDED = 1 << 20


def _packed(texts: Sequence[str | bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    encoded = [_encoded(text) for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def _split(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], separator: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], Tensor]:
    """Returns the values of texts that have several, and how many there are up to each text; an empty text has none."""
    whole = data.tobytes()
    parts = [whole[begin:end].split(separator) if end > begin else [] for begin, end in pairwise(offsets.tolist())]
    counts = torch.from_numpy(np.cumsum([0, *map(len, parts)], dtype=np.int64))
    return *_packed(list(chain.from_iterable(parts))), counts


def _encoded(text: object) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"text_ids: expected texts, got a {type(text).__name__}: {text!r}")


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
