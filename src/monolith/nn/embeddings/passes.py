"""Batches in flight between a forward pass and the store: planned, read, differentiated, applied or dropped.

The registry keeps every batch that was read for training until it ends. The autograd graph holds a `PassHandle` only,
by which the gradient finds its batch; when the graph is dropped before that, the batch is discarded at the next call.
So every plan that was opened at the store ends, and no graph keeps native objects alive.

Passes may pile up between two steps, as gradients are accumulated. The oldest of many are folded into one, which makes
the same update, bit for bit unless a graph before them is kept; so the memory is bounded by the distinct ids, like the
gradient of a dense table.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.errors import FailedPreconditionError
from monolith.forks import fork_safe
from monolith.nn.embeddings.rows_optimizer import RowGradient
from monolith.tables import buckets_of_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.nn.embeddings.gradient_step import StoreWorker
    from monolith.nn.embeddings.id_batch import BatchShape
    from monolith.nn.embeddings.pooling import PooledBatch, RowGradients
    from monolith.tables import BatchStamp, Pending, Plan, Rows, Schema


FOLDED_PASSES = 64
"""Number of passes without a step that are folded into one."""
ACCUMULATED_PASSES = 7
"""More backward passes than this without a step give a warning, unless the module is set to accumulate more."""


@dataclass(slots=True, eq=False)
class PlannedBatch:
    """The ids of a batch, ready to be looked up. Made by `Embeddings.plan`, in any thread."""

    plan: Plan
    shape: BatchShape
    pooled: PooledBatch
    times: int | Tensor | None
    """Unix seconds: one, or one per id; None: when the step is made."""
    is_replayable: bool
    """True iff the caller stamped it, so that the store may have seen it before."""
    rows: Pending[Rows] | None = None
    """The rows that `Embeddings.read_ahead` has read, or begun to read, for the next forward pass."""

    @property
    def num_examples(self) -> int:
        """Number of examples of the batch (B)."""
        return self.shape.num_examples


@dataclass(slots=True, eq=False)
class BatchPass:
    """One forward pass that may learn, or several folded ones whose gradients are complete."""

    plan: Plan
    times: int | Tensor | None
    """Like `PlannedBatch.times`."""
    is_replayable: bool
    pooled: PooledBatch | None
    """Maps gradients of outputs to gradients of rows; None after folding."""
    device: torch.device
    """Device on which the store keeps rows and takes gradients."""
    latest: Tensor | None = None
    """The rows that the pass saw, of tables whose optimizers need them."""
    gradient: Tensor | None = None
    """float32 [V], summed over all backward passes so far."""
    is_finite: bool = True
    """Whether the gradient is known to be finite."""
    is_taken: bool = False
    """Whether a step was made of the pass that is not applied yet."""
    is_submitted: bool = False
    """Whether that step was submitted and the store has not answered yet: then the store ends the plan."""
    is_settled: bool = False
    """Whether the anchor has its gradient of the backward pass, too: if it has none later, gradients were cleared."""
    is_final: bool = False
    """Whether no backward pass can reach the pass any more."""

    @property
    def stamp(self) -> BatchStamp:
        """Stamp of the batch."""
        return self.plan.stamp


class PassHandle:
    """The handle of a pass that an autograd graph holds."""

    __slots__ = ("_key", "_registry")

    def __init__(self, registry: PassRegistry, key: int) -> None:
        self._registry = weakref.ref(registry)
        self._key = key

    def find(self) -> tuple[PassRegistry, BatchPass]:
        """Returns the pass, if it may still learn.

        Raises:
            FailedPreconditionError: the pass has ended.
        """
        registry = self._registry()
        batch_pass = None if registry is None else registry.find(self._key)
        if registry is None or batch_pass is None:
            raise FailedPreconditionError(
                "backward: the batch of this graph has ended already: it, or a later one, was applied by step() or"
                " dropped by discard(); run the forward pass again"
            )
        return registry, batch_pass

    def __del__(self) -> None:
        # The collector may run this anywhere, also inside a call of the store, so the store is not called from here.
        registry = self._registry()
        if registry is not None:
            registry.dropped_graphs.append(self._key)


class PassRegistry:
    """The passes that have not ended. Its lock guards all fields; backward runs in threads of torch.

    Args:
        worker: Ends the plans.
        anchor: Parameter whose gradient is None when torch has cleared all gradients.
        latest_dims: By table: floats of a row that updates need as the pass saw it.
        accumulated_passes: Calls of `backward()` that may come before a step without a warning.
    """

    def __init__(
        self,
        worker: StoreWorker,
        anchor: Tensor,
        latest_dims: Sequence[int],
        accumulated_passes: int = ACCUMULATED_PASSES,
    ) -> None:
        self._worker = worker
        self._latest_dims = latest_dims
        self._lock = fork_safe(threading.Lock())
        self._keys = itertools.count()
        self._passes: dict[int, BatchPass] = {}
        self.dropped_graphs: deque[int] = deque()
        """Keys of passes that no backward pass can reach any more; appended to without the lock."""
        self.num_cleared = 0
        """Passes since the last step whose gradients were cleared by torch."""
        self.num_gradients = 0
        """Gradients received from backward passes so far."""
        self._num_waiting = 0
        self._num_backwards = 0
        self._accumulated_passes = accumulated_passes
        self._has_warned = False
        self.row_gradient = RowGradient(self)
        """Stands for the gradients of the next step in an optimizer of torch."""
        self.watch(anchor)

    @property
    def schema(self) -> Schema:
        """Schema of the tables."""
        return self._worker.store.schema

    @property
    def is_shared_by_ranks(self) -> bool:
        """Whether ranks make steps together, each with gradients of its own."""
        return self._worker.store.traits.collective

    def watch(self, anchor: Tensor) -> None:
        """Replaces the anchor: moving a module may give it a new one."""
        self.anchor = anchor
        registry = weakref.ref(self)

        def settle(_: Tensor) -> None:
            live_registry = registry()
            if live_registry is not None:
                live_registry.settle()

        anchor.register_post_accumulate_grad_hook(settle)  # type: ignore[no-untyped-call]  # torch gives it no types

    def settle(self) -> None:
        """Records that the anchor has the gradient that came with those of all passes so far."""
        with self._lock:
            for batch_pass in self._passes.values():
                batch_pass.is_settled = batch_pass.gradient is not None
            self._num_backwards += 1
        if self._num_backwards > self._accumulated_passes and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"Embeddings: {self._num_backwards} backward passes without a step: no row has learned from them. The"
                " line `emb.step()` is missing after `dense_optimizer.step()`; or use `emb.optimizer()` together"
                " with the dense one. To accumulate gradients over more passes, set"
                f" Embeddings(..., accumulated_passes={2 * self._num_backwards}). To train the other weights alone,"
                " freeze the rows: emb.requires_grad_(False)",
                stacklevel=2,
            )

    def require_unused(self, batch: PlannedBatch) -> None:
        """Rejects a plan that another pass is training on.

        Raises:
            FailedPreconditionError: that pass has not ended yet.
        """
        self._discard_dropped()
        with self._lock:
            if any(batch_pass.plan is batch.plan for batch_pass in self._passes.values()):
                raise FailedPreconditionError(
                    "forward: this planned batch is being trained on already; plan the batch again for a second pass"
                )

    def open(self, batch: PlannedBatch, device: torch.device, latest: Tensor | None) -> PassHandle:
        """Opens a pass for a plan that was just read for training."""
        self._fold_many()
        with self._lock:
            key = next(self._keys)
            self._passes[key] = BatchPass(batch.plan, batch.times, batch.is_replayable, batch.pooled, device, latest)
        return PassHandle(self, key)

    def find(self, key: int) -> BatchPass | None:
        """Returns the pass of this key, or None if it has ended."""
        with self._lock:
            return self._passes.get(key)

    def add_gradient(self, batch_pass: BatchPass, gradient: RowGradients) -> None:
        """Adds a gradient to the pass, which takes part in the next step from now on."""
        self._drop_cleared(but=batch_pass)
        with self._lock:
            earlier = batch_pass.gradient
            self._num_waiting += earlier is None
            self.num_gradients += 1
            batch_pass.gradient = gradient.values if earlier is None else earlier + gradient.values
            # A sum of finite gradients may be infinite.
            batch_pass.is_finite = gradient.is_finite and earlier is None

    def ready(self) -> list[BatchPass]:
        """Returns the passes of the next step, in the order of their batches."""
        self._discard_dropped()
        self._drop_cleared()
        with self._lock:
            ready = [
                batch_pass
                for batch_pass in self._passes.values()
                if batch_pass.gradient is not None and not batch_pass.is_taken
            ]
        return sorted(ready, key=lambda batch_pass: batch_pass.stamp.seq)

    def take(self, passes: Sequence[BatchPass]) -> None:
        """Marks these passes as taken: a step was made of them."""
        with self._lock:
            for batch_pass in passes:
                batch_pass.is_taken = True
            self._num_waiting = self._num_backwards = self.num_cleared = 0

    def submit(self, passes: Sequence[BatchPass]) -> None:
        """Marks these passes as submitted to the store."""
        with self._lock:
            for batch_pass in passes:
                batch_pass.is_submitted = True

    def give_back(self, passes: Sequence[BatchPass]) -> None:
        """Returns the passes of a step that was not applied to the next step."""
        with self._lock:
            for batch_pass in passes:
                batch_pass.is_taken = batch_pass.is_submitted = False

    def close_applied(self, applied: Sequence[BatchPass]) -> None:
        """Ends these passes, which the store has applied, and older ones: stores apply batches in order."""
        newest = {batch_pass.stamp.worker: batch_pass.stamp.seq for batch_pass in applied}
        with self._lock:
            ended = [
                key
                for key, batch_pass in self._passes.items()
                if batch_pass.stamp.seq <= newest.get(batch_pass.stamp.worker, -1)
            ]
            overtaken = [batch_pass for batch_pass in map(self._passes.pop, ended) if batch_pass not in applied]
        for batch_pass in overtaken:
            if not batch_pass.is_submitted:  # a submitted plan is ended by the store
                self._worker.discard(batch_pass.plan)

    def close_submitted(self, passes: Sequence[BatchPass]) -> None:
        """Ends these submitted passes without waiting for the store's answer."""
        with self._lock:
            for key in [key for key, batch_pass in self._passes.items() if batch_pass in passes]:
                del self._passes[key]

    def discard(self) -> int:
        """Drops all gradients of the next step; returns the number of passes they came from."""
        ready = self.ready()
        self.drop(ready)
        self._num_waiting = self._num_backwards = self.num_cleared = 0
        self.row_gradient.forget()
        return len(ready)

    def drop(self, passes: Sequence[BatchPass]) -> None:
        """Ends these passes without an update."""
        with self._lock:  # another thread may have ended some of them
            ended = [key for key, batch_pass in self._passes.items() if batch_pass in passes]
            dropped = [self._passes.pop(key) for key in ended]
        for batch_pass in dropped:
            self._worker.discard(batch_pass.plan)

    def _discard_dropped(self) -> None:
        while self.dropped_graphs:
            key = self.dropped_graphs.popleft()
            with self._lock:
                batch_pass = self._passes.get(key)
                if batch_pass is not None:
                    batch_pass.is_final = True
                if batch_pass is None or batch_pass.gradient is not None:
                    continue
                del self._passes[key]
            self._worker.discard(batch_pass.plan)

    def _drop_cleared(self, but: BatchPass | None = None) -> None:
        """Ends passes whose gradients torch has cleared with those of all parameters; `but` only loses its gradient."""
        if self.anchor.grad is not None:
            return
        with self._lock:
            cleared = [
                batch_pass for batch_pass in self._passes.values() if batch_pass.is_settled and not batch_pass.is_taken
            ]
            if cleared:
                self.row_gradient.forget()
            if but in cleared:
                cleared.remove(but)
                but.gradient, but.is_settled = None, False
        if cleared:
            self.num_cleared += len(cleared)
            self.drop(cleared)

    def _fold_many(self) -> None:
        """Folds the oldest passes into one, if there are many."""
        if self._num_waiting < FOLDED_PASSES or len(self._passes) < FOLDED_PASSES:
            return
        many = foldable(self.ready())
        with self._lock:
            if len(many) < FOLDED_PASSES or any(batch_pass.is_taken for batch_pass in many):
                return
            for batch_pass in many:
                batch_pass.is_taken = True  # a step of another thread comes before or after all of them
        try:
            folded = fold(many, self._worker, self._latest_dims)
        except BaseException:
            self.give_back(many)
            raise
        with self._lock:
            self._passes[next(self._keys)] = folded
        self.drop(many)


def foldable(passes: Sequence[BatchPass]) -> list[BatchPass]:
    """Returns the longest run of consecutive batches whose passes can be folded into one.

    No backward pass reaches them any more, and either all or none learn at the time of the step.
    """
    kinds = itertools.groupby(
        passes,
        lambda batch_pass: (
            batch_pass.is_final,
            batch_pass.stamp.worker,
            batch_pass.times is None,
            batch_pass.latest is None,
        ),
    )
    return max((list(run) for kind, run in kinds if kind[0]), key=len, default=[])


def fold(passes: Sequence[BatchPass], worker: StoreWorker, latest_dims: Sequence[int]) -> BatchPass:
    """Returns one pass with the occurrences of all, the sum of their gradients, and the stamp of the last.

    Its plan was opened at the store; the plans of `passes` are still to be ended.
    """
    dims = worker.store.schema.dims
    inputs = [_inputs(batch_pass.plan, len(dims)) for batch_pass in passes]
    ids, tables, buckets = (torch.cat(part) for part in zip(*inputs, strict=True))
    order = torch.argsort(tables, stable=True)
    splits = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(tables, minlength=len(dims)).cumsum(0)])
    plan = worker.store.plan(ids[order], splits, stamp=passes[-1].stamp, buckets=buckets[order])
    unique = torch.empty(len(order), dtype=torch.int64)
    unique[order] = plan.inverse.long()  # input of all passes end to end -> its place in the new plan
    places = [
        torch.empty(len(batch_pass.plan.unique_ids), dtype=torch.int64).index_copy_(
            0, batch_pass.plan.inverse.long(), part
        )
        for batch_pass, part in zip(passes, torch.split(unique, [len(columns[0]) for columns in inputs]), strict=True)
    ]
    parts = [(batch_pass.plan, place) for batch_pass, place in zip(passes, places, strict=True)]
    worker.read(plan, train=True)
    return replace(
        passes[-1],
        plan=plan,
        times=_times(passes, order),
        is_replayable=all(batch_pass.is_replayable for batch_pass in passes),
        pooled=None,
        gradient=_combined(plan, parts, [batch_pass.gradient for batch_pass in passes], dims, add=True),
        latest=None
        if passes[0].latest is None
        else _combined(plan, parts, [batch_pass.latest for batch_pass in passes], latest_dims, add=False),
        is_finite=False,  # a sum of finite gradients may be infinite
        is_settled=all(batch_pass.is_settled for batch_pass in passes),
        is_taken=False,
    )


def _inputs(plan: Plan, num_tables: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ids, tables and buckets of a batch in input order, tables end to end."""
    inverse = plan.inverse.long()
    buckets = torch.from_numpy(buckets_of_plan(plan.splits.numpy(), num_tables).astype(np.int16))
    return plan.unique_ids[inverse], plan.tables[inverse], buckets[inverse]


def _times(passes: Sequence[BatchPass], order: Tensor) -> int | Tensor | None:
    times = [batch_pass.times for batch_pass in passes]
    if times[0] is None or (all(isinstance(time, int) for time in times) and len(set(times)) == 1):
        return times[0]
    per_id = [
        time if isinstance(time, torch.Tensor) else torch.full((len(batch_pass.plan.inverse),), int(time or 0))
        for time, batch_pass in zip(times, passes, strict=True)
    ]
    return torch.cat(per_id)[order]


def _combined(
    plan: Plan,
    parts: Sequence[tuple[Plan, Tensor]],
    values: Sequence[Tensor | None],
    dims: Sequence[int],
    *,
    add: bool,
) -> Tensor:
    """Returns values of several plans in the layout of one: their sum, or those of the first plan with the id."""
    present = [value for value in values if value is not None]
    offsets = _offsets(plan, dims)
    total = present[0].new_zeros(int(torch.tensor(dims)[plan.tables].sum()))
    is_first = torch.ones(len(plan.unique_ids), dtype=torch.bool)
    for (part, place), own in zip(parts, present, strict=True):
        starts = _offsets(part, dims)
        for table, dim in enumerate(dims):
            mine = part.tables == table
            within = torch.arange(dim)
            to = (offsets[place[mine]][:, None] + within).to(own.device)
            new = own[(starts[mine][:, None] + within).to(own.device)]
            # The first gradient is copied: adding it to 0 would turn -0 into 0.
            old = total[to] + new if add else total[to]
            total[to] = torch.where(is_first[place[mine]][:, None].to(own.device), new, old)
        is_first[place] = False
    return total


def _offsets(plan: Plan, dims: Sequence[int]) -> Tensor:
    """Returns int64 [U]: where the values of each distinct id begin."""
    sizes = torch.tensor(dims)[plan.tables]
    return sizes.cumsum(0) - sizes
