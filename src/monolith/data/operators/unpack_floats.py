"""Packed vectors of a column as a dense column."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from monolith.config import config, require_at_least
from monolith.data import packed_floats
from monolith.data.batch_rows import with_columns
from monolith.data.operators.column_access import texts_of
from monolith.data.operators.conditions import Operator

if TYPE_CHECKING:
    from monolith.data.batch import Batch

__all__ = ["UnpackFloats"]


@config
class UnpackFloats(Operator):
    """Makes float32 [B, width] of a column of ``UE_QTZ`` bytes, as `FirstBytes` reads it; empty ones become zeros."""

    column: str = field(kw_only=False)
    width: int
    output: str = ""
    """Column of the vectors; empty: in place."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "width")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the vectors.

        Raises:
            DataLossError: bytes that are not a vector of this width; names the row.
        """
        vectors = packed_floats.unpack_floats(texts_of(batch, self.column, self), self.width)
        return with_columns(batch, {self.output or self.column: vectors})
