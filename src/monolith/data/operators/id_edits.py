"""Operators that move ids to another slot, make ids of numbers, strings and pairs of ids, or map ids to others.

Signatures have 48 bits and the slot is above them. ByteDance Monolith's operators on tensors masked 49 bits, so that
the old slot's low bit leaked into the new slot.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from monolith.config import config
from monolith.data.operators.column_access import PackedTexts, column_of, describe_column, ids_of, places_in, texts_of
from monolith.data.operators.conditions import Operator
from monolith.data.operators.row_draws import shift_right
from monolith.data.rows import with_columns
from monolith.ids import NUM_SLOTS_V2, pack_v2, switch_slot_v2
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import Batch

_K2 = -7286425919675154353  # 0x9ae16a3b2f90404f
_MUL = _K2 + 16  # k2 + 2 * length, for a length of 8
_LOW_32 = 0xFFFFFFFF


def city_hash64(numbers: Tensor) -> Tensor:
    """Returns CityHash64 (version 1.1) over the 8 little-endian bytes of each int64, as int64."""
    a = numbers + _K2
    c = _rotate(numbers, 37) * _MUL + a
    d = (_rotate(a, 25) + numbers) * _MUL
    mixed = (c ^ d) * _MUL
    mixed = mixed ^ shift_right(mixed, 47)
    mixed = (d ^ mixed) * _MUL
    return (mixed ^ shift_right(mixed, 47)) * _MUL


def folded_product(left: Tensor, right: Tensor) -> Tensor:
    """Returns the signed 128-bit product of each pair of int64, its upper half xor its lower half.

    >>> import torch
    >>> hex(int(folded_product(torch.tensor(5 << 48 | 7), torch.tensor(6 << 48 | 9))))
    '0x57001e0000003f'
    """
    # Schoolbook multiplication in halves of 32 bits; no partial sum leaves int64.
    left_low, left_high = left & _LOW_32, left >> 32
    right_low, right_high = right & _LOW_32, right >> 32
    carry = left_high * right_low + shift_right(left_low * right_low, 32)
    middle = left_low * right_high + (carry & _LOW_32)
    upper = left_high * right_high + (carry >> 32) + (middle >> 32)
    return upper ^ (left * right)


def _rotate(numbers: Tensor, bits: int) -> Tensor:
    return shift_right(numbers, bits) | (numbers << (64 - bits))


@config
class SwitchSlot(Operator):
    """Moves the ids of columns to other slots, with their signatures; in place, or as copies in further columns.

    >>> from monolith import ids
    >>> from monolith.data import Batch
    >>> batch = Batch({"user": Ragged.from_lists([[ids.pack_v2(7, 5)]])}, num_rows=1)
    >>> moved = SwitchSlot({"user": 100}, copy_suffix="shared")(batch)
    >>> list(moved), ids.slot_v2(moved["user_shared"].values)
    (['user', 'user_shared'], tensor([100]))
    """

    slots: Mapping[str, int] = field(kw_only=False)
    """Column to its new slot."""
    copy_suffix: str = ""
    """If set, the columns stay and copies ``<column>_<suffix>`` have the new slots."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", dict(self.slots))
        for slot in self.slots.values():
            check_slot(self, slot)

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with ids of the new slots."""
        columns = {}
        for name, slot in self.slots.items():
            values = column_of(batch, name, self)
            if not isinstance(values, Ragged) or values.dtype != torch.int64:
                got = describe_column(values)
                raise TypeError(f"SwitchSlot: column {name!r} must be a Ragged of int64, got {got}")
            target = f"{name}_{self.copy_suffix}" if self.copy_suffix else name
            columns[target] = values.with_flat_values(switch_slot_v2(values.flat_values, slot))
        return with_columns(batch, columns)


@config
class HashInts(Operator):
    """Makes ids of integers: CityHash64 of the number's 8 bytes as signature, under a slot."""

    column: str = field(kw_only=False)
    """int64, [B], [B, W] or rows of them."""
    slot: int
    output: str = ""
    """Column of the ids; empty: in place."""

    def __post_init__(self) -> None:
        check_slot(self, self.slot)

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the ids."""
        values = column_of(batch, self.column, self)
        if isinstance(values, Tensor) and values.dtype == torch.int64 and values.ndim in {1, 2}:
            width = values.shape[1] if values.ndim == 2 else 1
            lengths = torch.full((batch.num_rows,), width, device=values.device)
            values = Ragged.from_lengths(values.reshape(-1), lengths, validate=False)
        if not isinstance(values, Ragged) or values.dtype != torch.int64:
            got = describe_column(values)
            raise TypeError(f"HashInts: column {self.column!r} must be int64, a tensor or a Ragged, got {got}")
        ids = values.with_flat_values(pack_v2(self.slot, city_hash64(values.flat_values)))
        return with_columns(batch, {self.output or self.column: ids})


@config
class HashTexts(Operator):
    """Makes one id of each string, a hash of all its bytes as signature, under a slot; an empty string has no id.

    Upstream hashed only the first 8 bytes, so that longer strings collided; ids differ from its ids.
    """

    column: str = field(kw_only=False)
    slot: int
    output: str = ""

    def __post_init__(self) -> None:
        check_slot(self, self.slot)

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the ids."""
        texts = PackedTexts(texts_of(batch, self.column, self))
        lengths = torch.from_numpy(texts.lengths)
        # FNV's upper bits mix best, and the signature keeps the lower ones.
        hashes = city_hash64(torch.from_numpy(texts.hashes()))[lengths > 0]
        ids = Ragged.from_lengths(pack_v2(self.slot, hashes), (lengths > 0).to(torch.int64), validate=False)
        return with_columns(batch, {self.output or self.column: ids})


@config
class MapIds(Operator):
    """Replaces integers by those of a mapping, and the ones that are not in it by a default."""

    column: str = field(kw_only=False)
    mapping: Mapping[int, int]
    default: int = 0
    output: str = ""
    _keys: Tensor = field(init=False, repr=False, compare=False)
    _values: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mapping = {int(key): int(value) for key, value in self.mapping.items()}
        object.__setattr__(self, "mapping", mapping)
        keys = sorted(mapping)
        object.__setattr__(self, "_keys", torch.tensor(keys, dtype=torch.int64))
        object.__setattr__(self, "_values", torch.tensor([mapping[key] for key in keys], dtype=torch.int64))

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the integers replaced."""
        values = column_of(batch, self.column, self)
        if isinstance(values, list) or values.dtype != torch.int64:
            raise TypeError(f"MapIds: column {self.column!r} must be int64, got {describe_column(values)}")
        flat = values.flat_values if isinstance(values, Ragged) else values
        # The place of what is not in the mapping is -1: that of the default.
        targets = torch.cat([self._values, torch.tensor([self.default])]).to(flat.device)
        mapped = targets[places_in(self._keys, flat)]
        result = values.with_flat_values(mapped) if isinstance(values, Ragged) else mapped
        return with_columns(batch, {self.output or self.column: result})


def id_mask(rows: Ragged, wanted: int) -> Tensor:
    """Returns 1 for the rows that contain the id, 0 for the others; float32 [B].

    >>> id_mask(Ragged.from_lists([[7, 3], [], [3]]), 3)
    tensor([1., 0., 1.])
    """
    mask = torch.zeros(rows.num_rows, device=rows.device)
    mask[rows.value_rowids()[rows.flat_values == wanted]] = 1.0
    return mask


def sequence_mask(rows: Ragged, length: int) -> Tensor:
    """Returns 1 where a row has an element, 0 after its end; float32 [B, length]."""
    return rows.mask(length).to(torch.float32)


def check_slot(owner: object, slot: object) -> None:
    """Refuses what is no slot of the v2 layout."""
    if isinstance(slot, bool) or not isinstance(slot, int) or not 0 <= slot < NUM_SLOTS_V2:
        raise ValueError(f"{type(owner).__name__}: slot must be from 0 to {NUM_SLOTS_V2 - 1}, got {slot!r}")


@config
class CrossIds(Operator):
    """Adds the cross of two columns: for each id of `left`, then each of `right`, an id of the slot.

    Its signature is the 128-bit product of the two ids, upper half xor lower half, as in ByteDance Monolith's
    ``feature_combine``; a cross of more columns is a cross of crosses. The number of ids of a row is the product of
    those of the columns.
    """

    left: str = field(kw_only=False)
    right: str = field(kw_only=False)
    slot: int
    output: str = ""
    """Column of the crosses; empty: ``<left>-<right>``."""

    def __post_init__(self) -> None:
        check_slot(self, self.slot)

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the crosses."""
        left, right = ids_of(batch, self.left, self), ids_of(batch, self.right, self)
        return with_columns(batch, {self.output or f"{self.left}-{self.right}": cross_rows(left, right, self.slot)})


def cross_rows(left: Ragged, right: Ragged, slot: int) -> Ragged:
    """Returns the crosses of each row, those of its first left id first.

    >>> crossed = cross_rows(Ragged.from_lists([[5 << 48 | 7]]), Ragged.from_lists([[6 << 48 | 9]]), 100)
    >>> hex(crossed.flat_values[0])
    '0x64001e0000003f'
    """
    right_lengths = right.lengths()
    # Each left id meets all right ids of its row; where its pairs begin is the sum of what came before.
    repeats = right_lengths[left.value_rowids()]
    first = repeats.cumsum(0) - repeats
    total = int(repeats.sum())
    lefts = torch.repeat_interleave(left.flat_values, repeats, output_size=total)
    starts = right.row_splits[:-1][left.value_rowids()] - first
    places = torch.arange(total, device=left.device) + torch.repeat_interleave(starts, repeats, output_size=total)
    ids = pack_v2(slot, folded_product(lefts, right.flat_values[places]))
    return Ragged.from_lengths(ids, left.lengths() * right_lengths, validate=False)
