"""Random numbers that belong to a row: a function of a seed and of what the row holds, not of when it is read.

The same row gets the same number in every run, on every worker, at any batch size and after a restart, so a sampled
training set can be read again. Rows that are equal in all key columns get equal numbers; where that can be, number the
rows first (`NumberRows`) and draw by that column.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from monolith.data.operators.column_access import PackedTexts, column_of
from monolith.data.rows import with_columns
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.batch import Batch, ColumnValues

DEFAULT_KEYS = ("uid", "item_id", "req_time")
"""Keys of an impression: user, item and time."""

GOLDEN = -7046029254386353131
"""2**64 / golden ratio, odd: splitmix64's step, in its signed reading."""
_MIX_1, _MIX_2 = -4658895280553007687, -7723592293110705685


def mix64(numbers: Tensor) -> Tensor:
    """Returns each int64 well mixed: a bijection whose bits look independent (splitmix64's finaliser)."""
    mixed = numbers + GOLDEN
    mixed = (mixed ^ shift_right(mixed, 30)) * _MIX_1
    mixed = (mixed ^ shift_right(mixed, 27)) * _MIX_2
    return mixed ^ shift_right(mixed, 31)


def shift_right(numbers: Tensor, bits: int) -> Tensor:
    """Shifts zeros in, where torch's own shift keeps the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def row_keys(batch: Batch, columns: Sequence[str], owner: object) -> Tensor:
    """Returns one int64 for each row, a hash of these columns of it; [B].

    Numbers count by their bits, ids of a row with their order, texts by all their bytes.
    """
    keys = torch.zeros(batch.num_rows, dtype=torch.int64)
    for name in columns:
        keys = mix64(keys ^ _bits_of(column_of(batch, name, owner)).to(keys.device))
    return keys


def uniform_draws(keys: Tensor, *, seed: int, owner: object, count: int = 1) -> Tensor:
    """Returns float64 [B, count] in [0, 1): independent functions of key, seed and the class of the owner.

    Two owners of one class draw the same numbers at the same seed: give them different seeds.
    """
    salt = zlib.crc32(type(owner).__name__.encode()) | (seed & 0xFFFFFFFF) << 32
    signed = salt - (1 << 64) if salt >= 1 << 63 else salt
    start = mix64(keys ^ mix64(torch.tensor(signed, device=keys.device)))
    numbers = mix64(start[:, None] + torch.arange(count, device=keys.device) * GOLDEN)
    return shift_right(numbers, 11).to(torch.float64) * 2.0**-53


class NumberRows:
    """Adds the number of each row in the stream as an int64 column, counted from 0. A callable with a state.

    Belongs to one reading. After a prefetch its count runs ahead of the batches in use: save the column's last number
    plus one instead of the state.
    """

    def __init__(self, column: str = "row_number", *, start: int = 0) -> None:
        self.column = column
        self.next_number = start

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the column."""
        numbers = torch.arange(self.next_number, self.next_number + batch.num_rows)
        self.next_number += batch.num_rows
        return with_columns(batch, {self.column: numbers})

    def state_dict(self) -> dict[str, int]:
        """Returns the state to resume from."""
        return {"next_number": self.next_number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restores the count."""
        self.next_number = state["next_number"]


def _bits_of(values: ColumnValues) -> Tensor:
    if isinstance(values, list):
        return torch.from_numpy(PackedTexts(values).hashes())
    if isinstance(values, Ragged):
        # Places count within the row, so that the same row has the same key in any batch.
        starts = values.row_splits[:-1].index_select(0, values.value_rowids())
        places = torch.arange(len(starts), device=values.device) - starts
        inner = values.values if isinstance(values.values, Tensor) else _bits_of(values.values)
        parts = mix64(_integers(inner) ^ mix64(places))
        sums = torch.zeros(values.num_rows, dtype=torch.int64, device=values.device)
        return sums.index_add_(0, values.value_rowids(), parts) + values.lengths()
    numbers = _integers(values)
    if numbers.ndim == 1:
        return numbers
    keys = torch.zeros(len(numbers), dtype=torch.int64, device=numbers.device)
    for part in numbers.flatten(1).unbind(1):
        keys = mix64(keys ^ part)
    return keys


def _integers(values: Tensor) -> Tensor:
    """Converts numbers to int64: integers unchanged, others by their bits. Both zeros are one number."""
    if values.is_floating_point():
        return (values.to(torch.float64) + 0.0).view(torch.int64)
    return values.to(torch.int64)
