"""The plan of a batch whose rows servers keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.local_plan import NO_BATCH, LocalPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from monolith import _core
    from monolith.tables._native_tables import NativeTables
    from monolith.tables.batch import BatchStamp


class PsPlan(LocalPlan):
    """A plan, and the number under which servers keep their part of it between the read and the update."""

    __slots__ = ("ticket",)

    def __init__(
        self,
        native: NativeTables,
        core: _core.Plan,
        table_splits: NDArray[np.int64],
        stamp: BatchStamp = NO_BATCH,
        like: object = None,
    ) -> None:
        super().__init__(native, core, table_splits, stamp, like)
        self.ticket = 0
        """0: no server has it yet."""
