"""What a batch is to a `LocalStore`: its plan, the rows that were read for it, and the update made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monolith.tables._arrays import tensor_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from monolith import _core
    from monolith.tables._merged_update import MergedUpdate
    from monolith.tables._native_tables import NativeTables
    from monolith.tables.store import BatchStamp, Update


class LocalPlan:
    """A batch's distinct ids, and how far the batch has come. Tensors are views of the core's arrays."""

    __slots__ = ("core", "native", "num_values", "stamp", "status", "table_splits")

    def __init__(
        self, native: NativeTables, core: _core.Plan, table_splits: NDArray[np.int64], stamp: BatchStamp
    ) -> None:
        self.native = native
        self.core = core
        self.num_values = native.core.num_values(core)
        """Length of the flat rows and gradients."""
        self.table_splits = table_splits
        self.stamp = stamp
        self.status = "new"
        """new, open (read for training), applied or discarded; changed under the store's lock."""

    @property
    def unique_ids(self) -> Tensor:
        """int64 [U]."""
        return tensor_view(self.core.unique_ids)

    @property
    def splits(self) -> Tensor:
        """int64 [buckets * T + 1]."""
        return tensor_view(self.core.splits)

    @property
    def inverse(self) -> Tensor:
        """int32 [n]."""
        return tensor_view(self.core.inverse)

    @property
    def counts(self) -> Tensor:
        """int32 [U]."""
        return tensor_view(self.core.counts)


class PreparedUpdate(NamedTuple):
    """An update that was checked and made into one call of the core."""

    plans: Sequence[LocalPlan]
    merged: MergedUpdate
    rates: NDArray[np.float32]
    scale: float
    rule: Update

    @property
    def is_known_finite(self) -> bool:
        """Whether nobody needs to look; sums of finite gradients may be infinite."""
        return self.rule.known_finite and len(self.plans) == 1


class LocalRows:
    """Rows that were read, and the last update they contain."""

    __slots__ = ("seen_seq", "values")

    def __init__(self, values: Tensor, seen_seq: int) -> None:
        self.values = values
        self.seen_seq = seen_seq
