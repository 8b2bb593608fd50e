"""64-bit hashes for ids, vectorized over tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["city_hash64", "folded_product"]

_K2 = -7286425919675154353  # 0x9ae16a3b2f90404f
_MUL = _K2 + 16  # k2 + 2 * length, for a length of 8
_LOW_32 = 0xFFFFFFFF


def city_hash64(numbers: Tensor) -> Tensor:
    """Returns CityHash64 (version 1.1) over the 8 little-endian bytes of each int64, as int64."""
    a = numbers + _K2
    c = _rotate(numbers, 37) * _MUL + a
    d = (_rotate(a, 25) + numbers) * _MUL
    mixed = (c ^ d) * _MUL
    mixed = mixed ^ _shift_right(mixed, 47)
    mixed = (d ^ mixed) * _MUL
    return (mixed ^ _shift_right(mixed, 47)) * _MUL


def folded_product(left: Tensor, right: Tensor) -> Tensor:
    """Returns the signed 128-bit product of each pair of int64, its upper half xor its lower half.

    >>> import torch
    >>> hex(int(folded_product(torch.tensor(5 << 48 | 7), torch.tensor(6 << 48 | 9))))
    '0x57001e0000003f'
    """
    # Schoolbook multiplication in halves of 32 bits; no partial sum leaves int64.
    left_low, left_high = left & _LOW_32, left >> 32
    right_low, right_high = right & _LOW_32, right >> 32
    carry = left_high * right_low + _shift_right(left_low * right_low, 32)
    middle = left_low * right_high + (carry & _LOW_32)
    upper = left_high * right_high + (carry >> 32) + (middle >> 32)
    return upper ^ (left * right)


def _rotate(numbers: Tensor, bits: int) -> Tensor:
    return _shift_right(numbers, bits) | (numbers << (64 - bits))


def _shift_right(numbers: Tensor, bits: int) -> Tensor:
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
