"""Crosses of two columns of ids: one new id for each pair that a row has."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import torch

from monolith.config import config
from monolith.data.batch_rows import with_columns
from monolith.data.operators.column_access import ids_of
from monolith.data.operators.conditions import Operator
from monolith.data.operators.id_edits import check_slot
from monolith.data.operators.id_hashes import folded_product
from monolith.ids import pack_v2
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.data.batch import Batch

__all__ = ["CrossIds", "cross_rows"]


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
