"""64-bit feature ids: which bits are the slot, which are the signature.

An id names one feature value. Its high bits are the *slot* (feature field) it belongs to, its low bits are the
*signature*, usually a hash of the value. Two layouts are in use::

    v1   63........54 53.............................0     slots 0..1023; from slot 512 on the int64 id is negative
         slot (10)    signature (54)
    v2   63  62.....48 47............................0     slots 0..32767; bit 63 is reserved and 0: never negative
         0   slot (15) signature (48)

Tables, expiry and admission always read the slot by the v2 rule.

Every function is vectorised and returns the kind it was given: a torch tensor (any device), a NumPy array or a plain
``int``. Ids in arrays are int64. A plain ``int`` may also be the unsigned reading of the same 64 bits, as protobuf's
``fixed64`` fields give it; results are always the signed reading.

>>> import torch
>>> pack_v2(7, torch.tensor([5, 6]))
tensor([1970324836974597, 1970324836974598])
>>> slot_v2(1970324836974597), signature_v2(1970324836974597)
(7, 5)
"""

from __future__ import annotations

import operator
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "MAX_SLOT_NUMBER",
    "NUM_SLOTS_V1",
    "NUM_SLOTS_V2",
    "SIGNATURE_BITS_V1",
    "SIGNATURE_BITS_V2",
    "describe",
    "pack_v1",
    "pack_v2",
    "signature_v1",
    "signature_v2",
    "slot_v1",
    "slot_v2",
    "switch_slot_v1",
    "switch_slot_v2",
    "v1_to_v2",
    "validate_v2",
]

SIGNATURE_BITS_V1 = 54
"""Low bits of a v1 id that are its signature."""
SIGNATURE_BITS_V2 = 48
"""Low bits of a v2 id that are its signature."""
NUM_SLOTS_V1 = 1 << 10
"""v1 slots are 0..1023."""
NUM_SLOTS_V2 = 1 << 15
"""v2 slots are 0..32767."""
MAX_SLOT_NUMBER = NUM_SLOTS_V2
"""No layout has this many slots or more; arrays indexed by slot have this length."""

IdsT = TypeVar("IdsT", int, npt.NDArray[np.int64], torch.Tensor)
"""The kinds that the functions take and return."""


def pack_v1(slot: int | IdsT, signature: IdsT) -> IdsT:
    """Returns the v1 id of a slot and a signature, of the kind of `signature`.

    Only the low 54 bits of the signature are used, so a 64-bit hash can be given as it is. An array of slots (any
    integer type) is broadcast against the signatures.

    Raises:
        ValueError: a slot outside 0..1023.
        TypeError: signatures that are not int64, or slots of another kind than the signatures.

    >>> pack_v1(1023, 1)
    -18014398509481983
    """
    return _pack(slot, signature, num_slots=NUM_SLOTS_V1, signature_bits=SIGNATURE_BITS_V1)


def pack_v2(slot: int | IdsT, signature: IdsT) -> IdsT:
    """Returns the v2 id of a slot and a signature, of the kind of `signature`.

    Only the low 48 bits of the signature are used. An array of slots (any integer type) is broadcast against the
    signatures.

    Raises:
        ValueError: a slot outside 0..32767.
        TypeError: signatures that are not int64, or slots of another kind than the signatures.
    """
    return _pack(slot, signature, num_slots=NUM_SLOTS_V2, signature_bits=SIGNATURE_BITS_V2)


def slot_v1(ids: IdsT) -> IdsT:
    """Returns the slot of each v1 id, 0..1023."""
    return _field(ids, SIGNATURE_BITS_V1, NUM_SLOTS_V1 - 1)


def slot_v2(ids: IdsT) -> IdsT:
    """Returns the slot of each id by the v2 rule, 0..32767. The reserved bit is ignored, so -1 is in slot 32767."""
    return _field(ids, SIGNATURE_BITS_V2, NUM_SLOTS_V2 - 1)


def signature_v1(ids: IdsT) -> IdsT:
    """Returns the low 54 bits of each id."""
    return _field(ids, 0, (1 << SIGNATURE_BITS_V1) - 1)


def signature_v2(ids: IdsT) -> IdsT:
    """Returns the low 48 bits of each id."""
    return _field(ids, 0, (1 << SIGNATURE_BITS_V2) - 1)


def v1_to_v2(ids: IdsT, slot: int | IdsT | None = None) -> IdsT:
    """Converts v1 ids to v2 ids of the same slot, or of `slot` (0..32767) where given.

    The signature loses its upper 6 bits, so two v1 ids can become one v2 id.
    """
    return pack_v2(slot_v1(ids) if slot is None else slot, ids)


def switch_slot_v1(ids: IdsT, slot: int | IdsT) -> IdsT:
    """Moves v1 ids to another slot, with their signatures."""
    return pack_v1(slot, ids)


def switch_slot_v2(ids: IdsT, slot: int | IdsT) -> IdsT:
    """Moves v2 ids to another slot, with their signatures. The reserved bit of the result is always 0."""
    return pack_v2(slot, ids)


def validate_v2(ids: IdsT) -> IdsT:
    """Returns the ids unchanged, after checking that none of them has the reserved bit set.

    Raises:
        ValueError: an id whose bit 63 is set (a negative int64); v1 ids need :func:`v1_to_v2` first.
    """
    bits = _bits_of(ids, "ids")
    if (bad := _first_where(bits < 0, bits)) is not None:
        _refuse_slot(_unsigned(bad) >> SIGNATURE_BITS_V2, NUM_SLOTS_V2)
    return ids


def describe(value: int, *, version: Literal[1, 2] = 1) -> str:
    """Describes one id for logs and error messages: its unsigned value and its parts.

    >>> describe(pack_v1(3, 9))
    '54043195528445961(v1|slot=3|sig=9)'
    >>> describe(-1, version=2)
    '18446744073709551615(v2|slot=32767|sig=281474976710655)'
    """
    bits = int(_bits_of(operator.index(value), "id"))
    if version == 1:
        slot, signature = slot_v1(bits), signature_v1(bits)
    elif version == 2:
        slot, signature = slot_v2(bits), signature_v2(bits)
    else:
        raise ValueError(f"version of an id layout must be 1 or 2, got {version!r}")
    return f"{_unsigned(bits)}(v{version}|slot={slot}|sig={signature})"


def _pack(slot: int | IdsT, signature: IdsT, *, num_slots: int, signature_bits: int) -> IdsT:
    low = _bits_of(signature, "signature") & ((1 << signature_bits) - 1)
    high = _slots_of(slot, signature, num_slots) << signature_bits
    # A plain int does not wrap at bit 63 by itself, and arrays refuse an int beyond int64.
    ids: IdsT = low | (_signed(high) if isinstance(high, int) else high)
    return ids


def _field(ids: IdsT, shift: int, mask: int) -> IdsT:
    # The shift keeps the sign; the mask cuts its copies off.
    field: IdsT = (_bits_of(ids, "ids") >> shift) & mask
    return field


def _bits_of(ids: Any, name: str) -> Any:
    """Returns checked ids, as int64 arrays or as signed ints."""
    if isinstance(ids, torch.Tensor):
        if ids.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got a tensor of {ids.dtype}; convert it with .to(torch.int64)")
        return ids
    if isinstance(ids, np.ndarray):
        if ids.dtype != np.int64:
            raise TypeError(f"{name} must be int64, got an array of {ids.dtype}; convert it with .astype(np.int64)")
        return ids
    if isinstance(ids, bool) or not isinstance(ids, int | np.integer):
        raise TypeError(f"{name} must be a torch tensor, a NumPy array or an int, got {type(ids).__name__}")
    number = int(ids)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{name} must fit 64 bits, got {number}")
    return _signed(number)


def _slots_of(slot: Any, signature: Any, num_slots: int) -> Any:
    """Returns checked slots: an int, or an int64 array of the signature's kind."""
    if isinstance(slot, torch.Tensor) and isinstance(signature, torch.Tensor):
        if slot.is_floating_point() or slot.is_complex() or slot.dtype == torch.bool:
            raise TypeError(f"slot must be of an integer type, got a tensor of {slot.dtype}")
        slots: Any = slot.to(torch.int64)
    elif isinstance(slot, np.ndarray) and isinstance(signature, np.ndarray):
        if slot.dtype.kind not in "iu":
            raise TypeError(f"slot must be of an integer type, got an array of {slot.dtype}")
        slots = slot
    elif isinstance(slot, int | np.integer) and not isinstance(slot, bool):
        slots = int(slot)
    else:
        kind = type(signature).__name__
        raise TypeError(f"slot must be an int, or of the signature's kind ({kind}), got {type(slot).__name__}")
    if (bad := _first_where((slots < 0) | (slots >= num_slots), slots)) is not None:
        _refuse_slot(bad, num_slots)
    return slots.astype(np.int64) if isinstance(slots, np.ndarray) else slots


def _first_where(condition: Any, values: Any) -> int | None:
    """Returns the first of `values` (an array or an int) for which the condition holds."""
    if isinstance(condition, bool):
        return int(values) if condition else None
    return int(values[condition][0]) if bool(condition.any()) else None


def _refuse_slot(slot: int, num_slots: int) -> None:
    limit = f"less than {num_slots}" if slot >= 0 else "at least 0"
    raise ValueError(f"slot should be {limit}, while got {slot}")


def _signed(number: int) -> int:
    """Returns the two's complement reading of the low 64 bits."""
    return ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _unsigned(number: int) -> int:
    return number & ((1 << 64) - 1)
