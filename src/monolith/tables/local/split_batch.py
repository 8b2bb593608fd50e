"""The ids of one batch, divided among several owners of buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables.history import NUM_BUCKETS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class PartOfBatch(NamedTuple):
    """The ids of one owner, in the order of the batch."""

    ids: NDArray[np.int64]
    table_splits: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Their positions in the batch."""
    buckets: NDArray[np.uint16] | None
    """Bucket of each id; None: the ids determine them."""

    @property
    def bucket_tensor(self) -> Tensor | None:
        """The buckets as `Store.plan` takes them."""
        return None if self.buckets is None else torch.from_numpy(self.buckets.view(np.int16))


def split_batch(
    ids: NDArray[np.int64], table_splits: NDArray[np.int64], num_parts: int, buckets: NDArray[np.uint16] | None = None
) -> list[PartOfBatch]:
    """Returns the ids of each owner; an owner has consecutive buckets."""
    if buckets is None:
        _, sizes, grouped = _core.partition(ids, num_parts, True)
    else:
        _require_buckets(buckets)
        grouped, sizes = _core.group_by_index(buckets.astype(np.int64) * num_parts // NUM_BUCKETS, num_parts)
    parts = np.split(grouped, np.cumsum(sizes)[:-1])
    return [
        PartOfBatch(ids[part], np.searchsorted(part, table_splits), part, None if buckets is None else buckets[part])
        for part in parts
    ]


def _require_buckets(buckets: NDArray[np.uint16]) -> None:
    if len(buckets) and buckets.max() >= NUM_BUCKETS:
        raise InvalidArgumentError(f"a bucket must be in [0, {NUM_BUCKETS}), got {buckets.max()}")
