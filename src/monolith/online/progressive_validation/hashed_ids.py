"""Ids as recommenders without collisionless tables have them: hashed into a fixed number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from monolith.config import Config, config
from monolith.data.batch import Batch
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.data.batch import ColumnValues

__all__ = ["HashedIds"]

_STIR = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed number: neighbouring ids come far apart."""


@config
class HashedIds(Config):
    """Replaces the ids of some columns by their hash below a number of rows: what collides shares a row from then on.

    Give it to `Dataset.map`, or call it with a batch.

    >>> import torch
    >>> batch = Batch({"user": torch.tensor([7, 8, 9]), "label": torch.zeros(3)}, num_rows=3)
    >>> HashedIds(rows={"user": 2})(batch)["user"]
    tensor([1, 1, 0])
    """

    rows: Mapping[str, int]
    """Column -> rows that its ids share."""

    def __post_init__(self) -> None:
        for name, count in self.rows.items():
            if count < 1:
                raise ValueError(f"HashedIds: rows of {name!r} must be at least 1, got {count}")

    def __call__(self, batch: Batch) -> Batch:
        """The batch with other ids."""
        missing = [name for name in self.rows if name not in batch]
        if missing:
            raise InvalidArgumentError(
                f"HashedIds: the batch has no column {missing[0]!r}, only {', '.join(map(repr, batch))}"
            )
        hashed = {name: _hashed(name, batch[name], count) for name, count in self.rows.items()}
        return Batch({**batch, **hashed}, num_rows=batch.num_rows)


def _hashed(name: str, ids: ColumnValues, count: int) -> ColumnValues:
    if isinstance(ids, Ragged):
        return ids.with_values(_below(ids.flat_values, count))
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise InvalidArgumentError(f"HashedIds: column {name!r} must hold ids, int64, got {got}")
    return _below(ids, count)


def _below(ids: Tensor, count: int) -> Tensor:
    stirred = ids * _STIR
    return ((stirred ^ (stirred >> 32)) & (2**62 - 1)) % count
