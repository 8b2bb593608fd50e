"""The plan of a batch whose ids belong to several stores: a plan for each store, joined to one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.tables.history import NUM_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import BatchStamp
    from monolith.tables.local.plan import LocalPlan


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
    ids: NDArray[np.int64],
    table_splits: NDArray[np.int64],
    num_parts: int,
    buckets: NDArray[np.uint16] | None = None,
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


class ShardPlan:
    """One plan for each shard, end to end: shards have consecutive buckets, so the joined plan is bucket-major, too."""

    core = None
    """Each part has a plan of the core; the joined plan has none."""

    def __init__(
        self, store: object, parts: Sequence[LocalPlan], positions: Sequence[NDArray[np.int64]], stamp: BatchStamp
    ) -> None:
        self.store = store
        self.parts = parts
        self.positions = positions
        """For each shard, the positions of its ids in the batch."""
        self.stamp = stamp
        self.part_values = [part.num_values for part in parts]
        """For each shard, the length of its flat rows and gradients."""

    @property
    def num_values(self) -> int:
        """Length of the flat rows and gradients."""
        return sum(self.part_values)

    @cached_property
    def tables(self) -> Tensor:
        """int64 [U]: the table of each unique id."""
        return torch.cat([part.tables for part in self.parts])

    @cached_property
    def unique_ids(self) -> Tensor:
        """int64 [U]."""
        return torch.cat([part.unique_ids for part in self.parts])

    @cached_property
    def splits(self) -> Tensor:
        """int64 [buckets * T + 1]: a bucket has ids of one part only, so the starts add up."""
        return torch.stack([part.splits for part in self.parts]).sum(0)

    @cached_property
    def inverse(self) -> Tensor:
        """int32 [n]."""
        inverse = torch.empty(sum(len(positions) for positions in self.positions), dtype=torch.int32)
        begin = 0
        for part, positions in zip(self.parts, self.positions, strict=True):
            inverse[torch.from_numpy(positions)] = part.inverse + begin
            begin += part.core.num_unique
        return inverse

    @cached_property
    def counts(self) -> Tensor:
        """int32 [U]."""
        return torch.cat([part.counts for part in self.parts])
