"""Ids hashed into a fixed number of rows, as in recommenders without collisionless tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from monolith.config import Config, config, require_at_least
from monolith.data.batch import Batch
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.batch import ColumnValues

__all__ = ["HashedIds"]

_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""The constants of splitmix64, as signed numbers."""


@config
class HashedIds(Config):
    """Transform that replaces ids by their hash modulo a number of rows; colliding ids share a row.

    Pass it to `Dataset.map`, or call it with a batch. The columns share one array, so their slots must share rows, too.

    >>> import torch
    >>> batch = Batch({"user": torch.tensor([7, 8, 9]), "item": torch.tensor([7, 8, 9])}, num_rows=3)
    >>> hashed = HashedIds(columns=["user", "item"], rows=100)(batch)
    >>> hashed["user"], hashed["item"]
    (tensor([33, 86, 57]), tensor([34, 99, 47]))
    """

    columns: Sequence[str]
    """Names of the columns of ids."""
    rows: int
    """Number of rows that they share."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        require_at_least(self, 1, "rows")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with hashed ids."""
        missing = [name for name in self.columns if name not in batch]
        if missing:
            raise InvalidArgumentError(
                f"HashedIds: the batch has no column {missing[0]!r}, only {', '.join(map(repr, batch))}"
            )
        hashed = {
            name: _hashed(name, batch[name], place=place, rows=self.rows) for place, name in enumerate(self.columns)
        }
        return Batch({**batch, **hashed}, num_rows=batch.num_rows)


def _hashed(name: str, ids: ColumnValues, *, place: int, rows: int) -> ColumnValues:
    if isinstance(ids, Ragged):
        return ids.with_values(_below(ids.flat_values, place, rows))
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise InvalidArgumentError(f"HashedIds: column {name!r} must hold ids, int64, got {got}")
    return _below(ids, place, rows)


def _below(ids: Tensor, place: int, rows: int) -> Tensor:
    """Hashes ids with splitmix64: each bit of an id, and the index of its column, flips half of all bits."""
    mixed = (ids * 1024 + place) * _GOLDEN
    mixed = (mixed ^ _shifted(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * _SECOND
    return (_shifted(mixed ^ _shifted(mixed, 31), 1)) % rows


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shifts to the right, unsigned."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
