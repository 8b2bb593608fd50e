"""The store whose rows live in the memory of a GPU, and the sessions of its workers."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from monolith import _core
from monolith.device import indexed, launcher_of
from monolith.errors import InvalidArgumentError, ResourceExhaustedError
from monolith.tables.arrays import MAX_IDS, bucket_array, finite_scale, float_array, id_array, time_array
from monolith.tables.batch import NOTHING_APPLIED, Applied, Finished, made_from
from monolith.tables.cuda_plan import CudaPlan, make_plan, upload_plan, with_offsets
from monolith.tables.history import NUM_BUCKETS
from monolith.tables.local.group_store import GroupSession, GroupStore
from monolith.tables.local.native_tables import NativeTables
from monolith.tables.local.plan import (
    LocalPlan,
    LocalRows,
    latest_of,
    merge_updates,
    newest_and_first,
    push_to_core,
    require_each_once,
    require_not_discarded,
)
from monolith.tables.slot_keys import buckets_of_plan
from monolith.tables.store import Traits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import BatchStamp, Pending, Plan, Rows, Update
    from monolith.tables.cuda_plan import Occurrences, PlanArrays
    from monolith.tables.table_config import TableConfig

_SUBJECT = "store on a device"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """Sizes of a table's pieces on a device; tests lower them to reach every case with few rows."""

    chunk_bits: int = -1
    """Rows of a chunk, as a power of two; -1: as many as fill about a megabyte."""
    segment_bits: int = 6
    """Words of an empty segment of the index, as a power of two."""


class CudaStore(GroupStore[CudaPlan]):
    """`monolith.tables.store.Store` over tables in the memory of a GPU; results are those of `LocalStore`, bit for bit.

    Rows are read and updated by kernels, in the order of the calls, on a CUDA stream of the store. The caller's stream
    waits for them; the host waits for the outcome of an update only. Rows that are read, and gradients, are on the
    device; ids, plans, blocks and files are of the host. Cuts, files and changes are those of `LocalStore`.

    ``device="cpu"`` runs the text of the same kernels on the processor: for tests, and slowly.

    >>> import torch
    >>> from monolith.tables import BatchStamp, CudaStore, Segment, TableConfig, Update
    >>> store = CudaStore({"user": TableConfig([Segment(1)])}, device="cpu")
    >>> joined = store.join(worker=0)
    >>> plan = joined.plan(torch.tensor([3, 3]), torch.tensor([0, 2]), stamp=BatchStamp(worker=0, seq=0))
    >>> rule = Update(previous=-1, step=0, learning_rates=torch.tensor([0.5]), times=0)
    >>> joined.apply([(plan, torch.tensor([1.0]))], rule).result().inserted
    1
    >>> store.read(plan, step=1).result().values
    tensor([-0.5000])

    Args:
        configs: Table name -> its config. Serving tables are rejected: they are filled from files, not by training.
        device: ``"cuda"``, ``"cuda:N"`` or ``"cpu"``.
        sizes: For tests.
        launcher: For tests: what runs the kernels.

    Raises:
        UnavailableError: the GPU, its driver or the compiler of kernels is missing; names which.
    """

    subject = _SUBJECT
    plan_kind = CudaPlan

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        device: torch.device | str = "cuda",
        sizes: DeviceSizes | None = None,
        launcher: _core.DeviceLauncher | None = None,
    ) -> None:
        self.device = indexed(device)
        """Where the rows are."""
        self.launcher = launcher_of(self.device) if launcher is None else launcher
        """What runs the kernels."""
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        """The stream of all changes and reads of rows; None on a processor."""
        self._plan_stream = torch.cuda.Stream(self.device) if self.stream is not None else None  # type: ignore[no-untyped-call]
        native, sizes = NativeTables(configs), DeviceSizes() if sizes is None else sizes
        self._dims = torch.tensor(native.dims).to(self.device)
        self._has_wide_slots = any(config.wide_slots for config in native.configs)
        self.rows = _core.DeviceGroup(
            native.core,
            self.launcher,
            stream=0 if self.stream is None else self.stream.cuda_stream,
            chunk_bits=sizes.chunk_bits,
            segment_bits=sizes.segment_bits,
        )
        super().__init__(native, self.rows)
        self.traits = Traits(device=str(self.device))
        """Properties of the engine: in process and exact, with rows on a device."""

    def join(self, worker: int) -> CudaWorkerSession:
        """Begins an incarnation of a worker."""
        return CudaWorkerSession(self, worker)

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> CudaPlan:
        """Groups the ids of one batch of all tables, on the device; touches no row and takes no lock.

        Ids of tables with slots of any int64 that come without buckets are planned by the core, which checks them.
        """
        if buckets is None and self._has_wide_slots:
            core, splits = self.plan_by_core(ids, table_splits, None)
            return self.uploaded(core, splits, stamp)
        ids = torch.as_tensor(ids)
        splits = self._checked_splits(ids, table_splits)
        self._check_buckets(buckets, ids.numel())
        with self._planning(ids, buckets):
            flat = ids.detach().to(self.device, non_blocking=True).reshape(-1).contiguous()
            of_ids = None if buckets is None else buckets.to(self.device, non_blocking=True).contiguous()
            stream = 0 if self._plan_stream is None else self._plan_stream.cuda_stream
            arrays, counts = make_plan(self.launcher, stream, flat, splits, of_ids)
            return self._new_plan(splits, stamp, arrays, counts, None)

    def _check_buckets(self, buckets: Tensor | None, num_ids: int) -> None:
        if buckets is None:
            return
        if buckets.dtype != torch.int16 or buckets.shape != (num_ids,):
            bucket_array(buckets, num_ids, _SUBJECT)  # raises
        if num_ids and not 0 <= int(buckets.min()) <= int(buckets.max()) < NUM_BUCKETS:
            raise InvalidArgumentError(
                f"{_SUBJECT}: a bucket must be in [0, {NUM_BUCKETS}), got {int(buckets.min())} to {int(buckets.max())}"
            )

    def uploaded(self, core: _core.Plan, table_splits: NDArray[np.int64], stamp: BatchStamp) -> CudaPlan:
        """Returns a plan of the core with its arrays on the device."""
        with self._planning():
            arrays, counts = upload_plan(core, len(self.native), self.device)
            return self._new_plan(table_splits, stamp, arrays, counts, core)

    def on_host(self, plan: CudaPlan) -> LocalPlan:
        """Returns the same plan as the core has it."""
        core = plan.core
        if core is None:
            places = plan.inverse.long()
            ids = plan.unique_ids[places].numpy()
            buckets = None
            if self._has_wide_slots:
                of_cells = buckets_of_plan(plan.splits.numpy(), len(self.native)).astype(np.uint16)
                buckets = of_cells[places.numpy()]
            core = self.native.core.plan(ids, plan.table_splits, True, buckets)
        return LocalPlan(self.native, core, plan.table_splits, plan.stamp)

    def _checked_splits(self, ids: Tensor, table_splits: Tensor) -> NDArray[np.int64]:
        if ids.dtype != torch.int64 or ids.is_meta:
            id_array(ids, _SUBJECT)  # raises, and names the conversion
        splits = id_array(table_splits, _SUBJECT, "table_splits").copy()
        if splits.shape != (len(self.native) + 1,):
            raise InvalidArgumentError(
                f"{_SUBJECT}: table_splits must have shape ({len(self.native) + 1},), got {splits.shape}"
            )
        if splits[0] != 0 or splits[-1] != ids.numel() or (np.diff(splits) < 0).any():
            raise InvalidArgumentError(
                f"{_SUBJECT}: table_splits must ascend from 0 to the number of ids ({ids.numel()}), got"
                f" {splits.tolist()}"
            )
        if ids.numel() > MAX_IDS:
            raise InvalidArgumentError(
                f"{_SUBJECT}: at most 2^31 - 1 ids fit in one call, got {ids.numel()}; split the batch"
            )
        return splits

    def _new_plan(
        self,
        splits: NDArray[np.int64],
        stamp: BatchStamp,
        arrays: PlanArrays,
        counts: Sequence[int],
        core: _core.Plan | None,
    ) -> CudaPlan:
        if len(self.native) > 1:
            arrays = with_offsets(arrays, self._dims)
        ready = None if self._plan_stream is None else self._plan_stream.record_event()
        return CudaPlan(self.native, splits, stamp, arrays=arrays, num_ids_of_tables=counts, core=core, ready=ready)

    @contextlib.contextmanager
    def _planning(self, *inputs: Tensor | None) -> Iterator[None]:
        """Makes a plan on the stream of plans, which waits for the caller's stream only if inputs come from there."""
        if self._plan_stream is None:
            yield
            return
        on_device = [tensor for tensor in inputs if tensor is not None and tensor.is_cuda]
        if on_device:
            self._plan_stream.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in on_device:
            tensor.record_stream(self._plan_stream)  # the caller may drop it before the kernels have read it
        with torch.cuda.stream(self._plan_stream):
            yield

    def plan_arrays(self, plan: Plan) -> PlanArrays:
        """Returns the arrays of a plan on the device, ready for the caller's current stream."""
        return self._ready(plan).arrays

    def occurrences(self, plan: Plan) -> Occurrences:
        """Returns where each unique id of a plan occurs, on the device, ready for the caller's current stream."""
        return self._ready(plan).occurrences

    def _ready(self, plan: Plan) -> CudaPlan:
        own = self.own(plan)
        if self.stream is not None:
            own.wait_until_ready()
            own.used_on(torch.cuda.current_stream(self.device))
        return own

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Returns the current rows."""
        return Finished(LocalRows(self.read_values(self.own(plan), step), NOTHING_APPLIED))

    def read_values(self, plan: CudaPlan, step: int) -> Tensor:
        """Returns float32 [V], on the device: the current rows of a plan."""
        values = torch.empty(plan.num_values, dtype=torch.float32, device=self.device)
        with self.in_order(plan):
            self.rows.read(plan.on_device, values.data_ptr(), step)
        return values

    @contextlib.contextmanager
    def in_order(self, *plans: CudaPlan) -> Iterator[None]:
        """Orders the launches inside after those of the caller's stream, and that stream's later ones after them.

        The arrays of the plans are ready for both streams, and stay until both have passed.
        """
        if self.stream is None:
            yield
            return
        callers = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(callers)
        for plan in plans:
            plan.wait_until_ready(self.stream)
            plan.used_on(self.stream)
            plan.used_on(callers)
        try:
            yield
        finally:
            callers.wait_stream(self.stream)

    def on_device(self, values: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
        """Returns float32 values, contiguous on the device; those of the host are copied.

        Raises:
            InvalidArgumentError: wrong dtype or shape.
        """
        values = torch.as_tensor(values)
        if values.dtype != torch.float32:
            raise TypeError(f"{_SUBJECT}: {name} must be float32, got {values.dtype}; write {name}.float()")
        if tuple(values.shape) != shape:
            raise InvalidArgumentError(f"{_SUBJECT}: {name} must have shape {shape}, got {tuple(values.shape)}")
        return values.detach().to(self.device).contiguous()


class CudaWorkerSession(GroupSession[CudaPlan]):
    """`monolith.tables.store.WorkerSession` at a `CudaStore`."""

    _store: CudaStore

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Returns the rows of the plan, which are on the device once the caller's stream reaches them."""
        own, seen = self._begin_read(plan, after=after, train=train)
        return Finished(LocalRows(self._store.read_values(own, step), seen))

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Makes one optimizer step per id with the sum of its gradients; skips a batch that was applied before."""
        store, native = self._store, self._store.native
        plans = [self._own(plan) for plan, _ in updates]
        num_ids = sum(plan.num_ids for plan in plans)
        bounded = native.event_clock.bounded(time_array(rule.times, (num_ids,), _SUBJECT))
        require_each_once(plans, _SUBJECT)
        merged = self._merged(plans, [gradient for _, gradient in updates], rule, bounded.times)
        stamp, first_seq = newest_and_first(plans)
        rates = float_array(rule.learning_rates, (native.rate_splits[-1],), _SUBJECT, "learning_rates")
        scale = finite_scale(rule.scale, _SUBJECT)
        require_not_discarded(plans, _SUBJECT)
        apply = partial(
            store.rows.apply,
            merged.plan.on_device,
            merged.gradient.data_ptr(),
            0 if merged.latest is None else merged.latest.data_ptr(),
            rates,
            rule.step,
            merged.times,
            scale,
            rule.known_finite and len(plans) == 1,
            [push_to_core(stamp, self._incarnation, first_seq, rule.previous)],
        )
        with store.in_order(merged.plan):
            try:
                applied = apply()
            except ResourceExhaustedError:  # nothing has changed
                torch.cuda.empty_cache()
                applied = apply()
        store.plans.close_applied(plans)
        if not applied.duplicate:
            native.event_clock.count(bounded)
        return Finished(made_from(Applied, applied))

    def _merged(
        self, plans: Sequence[CudaPlan], gradients: Sequence[Tensor], rule: Update, times: NDArray[np.int64]
    ) -> _MergedUpdate:
        """Returns one plan and its arrays; several plans, and latest rows, are merged and laid out on the host."""
        store, native = self._store, self._store.native
        on_device = [
            store.on_device(gradient, (plan.num_values,), "gradient")
            for plan, gradient in zip(plans, gradients, strict=True)
        ]
        needs_host = len(plans) > 1 or rule.latest is not None
        on_host = [store.on_host(plan) for plan in plans] if needs_host else []
        latest = latest_of(native, on_host, rule, _SUBJECT) if needs_host else None
        if len(plans) == 1:
            return _MergedUpdate(plans[0], on_device[0], times, None if latest is None else self._upload(latest[0]))
        arrays = [gradient.cpu().numpy() for gradient in on_device]
        core, gradient, times, first = merge_updates(native, on_host, arrays, times, latest)
        plan = store.uploaded(core, table_splits_of(on_host), plans[0].stamp)
        return _MergedUpdate(plan, self._upload(gradient), times, None if first is None else self._upload(first))

    def _upload(self, values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values).to(self._store.device)


def table_splits_of(plans: Sequence[LocalPlan]) -> NDArray[np.int64]:
    """Returns the table splits of the ids of several plans, merged: those of each table end to end."""
    splits: NDArray[np.int64] = np.add.reduce([plan.table_splits for plan in plans])
    return splits


class _MergedUpdate(NamedTuple):
    """One plan of all ids of an update."""

    plan: CudaPlan
    gradient: Tensor
    times: NDArray[np.int64]
    latest: Tensor | None
