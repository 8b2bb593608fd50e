"""The plans of a `CudaStore`: made by kernels on the device, or by the core and copied there."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from monolith import _core
from monolith.tables.history import NUM_BUCKETS
from monolith.tables.local.plan import LocalPlan, tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import BatchStamp
    from monolith.tables.local.native_tables import NativeTables

_SHORT_CELLS = 1 << 15
"""Numbers of cells below this fit into int16, which sorts faster."""
_LEAST_SLOT_BITS = 6


class PlanArrays(NamedTuple):
    """The arrays of a plan on the device of the rows."""

    unique_ids: Tensor
    """int64 [U]"""
    cells: Tensor
    """int32 [U]: bucket * T + table of each unique id."""
    splits: Tensor
    """int64 [buckets * T + 1]"""
    inverse: Tensor
    """int32 [n]"""
    counts: Tensor
    """int32 [U]"""
    offsets: Tensor | None
    """int64 [U]: where the values of each unique id begin; None: one table, whose rows are end to end."""


class Occurrences(NamedTuple):
    """The input positions of each unique id, on the device: those of `u` are order[starts[u]:starts[u + 1]]."""

    starts: Tensor
    """int32 [U + 1]"""
    order: Tensor
    """int64 [n]: in input order."""


class CudaPlan(LocalPlan):
    """The distinct ids of a batch, with arrays on the device. The tensors of the interface are copies on the host."""

    __slots__ = ("__dict__",)

    core: _core.Plan | None  # None: the plan was made on the device

    def __init__(
        self,
        native: NativeTables,
        table_splits: NDArray[np.int64],
        stamp: BatchStamp,
        *,
        arrays: PlanArrays,
        num_ids_of_tables: Sequence[int],
        core: _core.Plan | None,
        ready: torch.cuda.Event | None,
    ) -> None:
        """`ready` is recorded after the last launch that writes the arrays; None: they have been written."""
        self.owner = native.identity
        self._num_tables = len(native.names)
        self.table_splits = table_splits
        self.stamp = stamp
        self.like = None
        self.status = "new"
        self.core = core
        self._ready = ready
        self.arrays = arrays
        """The plan on the device."""
        self.num_ids = int(table_splits[-1])
        """Ids of the batch (n)."""
        self.num_values = sum(count * dim for count, dim in zip(num_ids_of_tables, native.dims, strict=True))
        self._rows = torch.empty(len(arrays.unique_ids), dtype=torch.int32, device=arrays.unique_ids.device)
        """The row of each unique id when it was last read."""
        self.on_device = _core.DevicePlan(
            table_splits=table_splits,
            num_ids_of_tables=list(num_ids_of_tables),
            keys=arrays.unique_ids.data_ptr(),
            cells=arrays.cells.data_ptr(),
            splits=arrays.splits.data_ptr(),
            inverse=arrays.inverse.data_ptr(),
            counts=arrays.counts.data_ptr(),
            offsets=0 if arrays.offsets is None else arrays.offsets.data_ptr(),
            rows=self._rows.data_ptr(),
        )
        """The plan as kernels take it."""

    @cached_property
    def occurrences(self) -> Occurrences:
        """Where each unique id occurs: for the sums of gradients."""
        self.wait_until_ready()
        starts = torch.zeros(len(self.arrays.counts) + 1, dtype=torch.int32, device=self.arrays.counts.device)
        torch.cumsum(self.arrays.counts, 0, dtype=torch.int32, out=starts[1:])
        return Occurrences(starts, torch.sort(self.arrays.inverse, stable=True).indices)

    def wait_until_ready(self, stream: torch.cuda.Stream | None = None) -> None:
        """Lets a stream, by default the current one, wait until the arrays have been written."""
        if self._ready is not None:
            (torch.cuda.current_stream(self.arrays.counts.device) if stream is None else stream).wait_event(self._ready)

    def _on_host(self, array: Tensor) -> Tensor:
        self.wait_until_ready()
        return array.cpu()

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Keeps the arrays until what is now in a stream has ended, also if the plan is dropped before."""
        for array in (*self.arrays, self._rows):
            if array is not None:
                array.record_stream(stream)

    @property
    def unique_ids(self) -> Tensor:
        """int64 [U]: by bucket, then table, then first seen."""
        return self._on_host(self.arrays.unique_ids)

    @property
    def splits(self) -> Tensor:
        """int64 [buckets * T + 1]: where each (bucket, table) starts in `unique_ids`."""
        return self._on_host(self.arrays.splits)

    @property
    def inverse(self) -> Tensor:
        """int32 [n]: input position -> position in `unique_ids`."""
        return self._on_host(self.arrays.inverse)

    @property
    def counts(self) -> Tensor:
        """int32 [U]: occurrences in the batch."""
        return self._on_host(self.arrays.counts)

    @property
    def tables(self) -> Tensor:
        """int64 [U]: the table of each unique id."""
        return torch.from_numpy(tables_of(self.splits.numpy(), self._num_tables))

    def __len__(self) -> int:
        return len(self.arrays.unique_ids)


def upload_plan(core: _core.Plan, num_tables: int, device: torch.device) -> tuple[PlanArrays, list[int]]:
    """Returns the arrays of a plan of the core, and the unique ids of each table."""

    def put(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array)).to(device)

    sizes = np.diff(core.splits)
    cells = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    counts = sizes.reshape(-1, num_tables).sum(axis=0).tolist()
    arrays = PlanArrays(
        put(core.unique_ids), put(cells), put(core.splits), put(core.inverse), put(core.counts), offsets=None
    )
    return arrays, counts


def make_plan(
    launcher: _core.DeviceLauncher, stream: int, ids: Tensor, table_splits: NDArray[np.int64], buckets: Tensor | None
) -> tuple[PlanArrays, list[int]]:
    """Makes the plan of ids on their device, by kernels; returns its arrays and the unique ids of each table.

    `buckets`, int16 in [0, 1024), are those of the ids, on the same device; None: the ids determine them. The order is
    that of the core's plans. Waits for the device once, for the number of unique ids.
    """
    device, num_ids, num_tables = ids.device, len(ids), len(table_splits) - 1

    def empty(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    splits_on_device = torch.from_numpy(table_splits).to(device)
    slot_bits = max(_LEAST_SLOT_BITS, (2 * num_ids - 1).bit_length())
    slots = torch.full((1 << slot_bits,), -1, dtype=torch.int32, device=device)
    firsts, is_first, place_of = empty(num_ids), empty(num_ids), empty(num_ids)
    source = _core.PlanSource(
        ids.data_ptr(), 0 if buckets is None else buckets.data_ptr(), num_ids, splits_on_device.data_ptr(), num_tables
    )
    launcher.find_firsts(source, slots.data_ptr(), slot_bits, firsts.data_ptr(), is_first.data_ptr(), stream=stream)
    ranks = torch.zeros(num_ids + 1, dtype=torch.int32, device=device)
    torch.cumsum(is_first, 0, dtype=torch.int32, out=ranks[1:])
    ends = ranks[splits_on_device].tolist()  # waits
    num_unique = ends[-1]
    positions, cells = empty(num_unique), empty(num_unique)
    launcher.compact_firsts(
        source, firsts.data_ptr(), ranks[1:].data_ptr(), positions.data_ptr(), cells.data_ptr(), stream=stream
    )
    short = NUM_BUCKETS * num_tables <= _SHORT_CELLS
    in_order = torch.sort(cells.to(torch.int16) if short else cells, stable=True)
    arrays = PlanArrays(
        empty(num_unique, torch.int64),
        in_order.values.to(torch.int32),
        empty(NUM_BUCKETS * num_tables + 1, torch.int64),
        empty(num_ids),
        torch.zeros(num_unique, dtype=torch.int32, device=device),
        offsets=None,
    )
    launcher.order_distinct(
        source,
        num_unique,
        places=in_order.indices.data_ptr(),
        positions=positions.data_ptr(),
        firsts=firsts.data_ptr(),
        place_of=place_of.data_ptr(),
        cells=arrays.cells.data_ptr(),
        unique=arrays.unique_ids.data_ptr(),
        inverse=arrays.inverse.data_ptr(),
        counts=arrays.counts.data_ptr(),
        splits=arrays.splits.data_ptr(),
        stream=stream,
    )
    return arrays, np.diff(ends).tolist()


def with_offsets(arrays: PlanArrays, dims: Tensor) -> PlanArrays:
    """Returns the arrays with the offsets of values, for tables of these dims (int64 [T], on the device)."""
    sizes = dims[arrays.cells.remainder(len(dims)).long()]
    return arrays._replace(offsets=sizes.cumsum(0) - sizes)
