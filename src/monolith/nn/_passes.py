"""Batches on their way from a forward pass to the store: planned, read, differentiated, applied or dropped.

The ledger keeps every batch that was read for training until it ends. The autograd graph holds a `GraphEnd` only, by
which the gradient finds its batch; when the graph is dropped before that, the batch is discarded at the next call. So
every plan that was opened at the store ends, and no graph keeps native objects alive.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.linalg import vector_norm

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.forks import at_rest_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monolith.nn._id_batch import BatchShape
    from monolith.nn._pooling import PooledBatch, RowGradients
    from monolith.nn._worker import StoreWorker
    from monolith.tables.batch import Applied, BatchStamp, Plan, Update
    from monolith.tables.schema import Schema


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
    rows: Tensor | None = None
    """What `Embeddings.read_ahead` has read for the forward pass to come."""

    @property
    def num_examples(self) -> int:
        """Examples of the batch (B)."""
        return self.shape.num_examples


@dataclass(slots=True, eq=False)
class BatchPass:
    """One forward pass that may learn."""

    batch: PlannedBatch
    device: torch.device
    """Where the store keeps rows and takes gradients."""
    latest: Tensor | None = None
    """The rows that the pass saw, of tables whose optimizers want to know them."""
    gradient: Tensor | None = None
    """float32 [V], summed over all backward passes so far."""
    is_finite: bool = True
    """Of the gradient; False: not known."""
    is_taken: bool = False
    """Whether a step was made of it that is not applied yet."""

    @property
    def stamp(self) -> BatchStamp:
        """Which batch it is."""
        return self.batch.plan.stamp


class GraphEnd:
    """What an autograd graph holds of a pass."""

    __slots__ = ("_key", "_ledger")

    def __init__(self, ledger: Ledger, key: int) -> None:
        self._ledger = weakref.ref(ledger)
        self._key = key

    def find(self) -> tuple[Ledger, BatchPass]:
        """The pass, if it may still learn.

        Raises:
            FailedPreconditionError: it has ended.
        """
        ledger = self._ledger()
        found = None if ledger is None else ledger.find(self._key)
        if ledger is None or found is None:
            raise FailedPreconditionError(
                "backward: the batch of this graph has ended already: it, or a later one, was applied by step() or"
                " dropped by discard(); run the forward pass again"
            )
        return ledger, found

    def __del__(self) -> None:
        # The collector may run this anywhere, also inside a call of the store, so the store is not called from here.
        ledger = self._ledger()
        if ledger is not None:
            ledger.dropped_graphs.append(self._key)


class Ledger:
    """The passes that have not ended. Its lock guards all of it; backward runs in threads of torch."""

    def __init__(self, worker: StoreWorker) -> None:
        self._worker = worker
        self._lock = at_rest_in_forks(threading.Lock())
        self._keys = itertools.count()
        self._passes: dict[int, BatchPass] = {}
        self.dropped_graphs: deque[int] = deque()
        """Keys of passes that no backward pass can reach any more; appended to without the lock."""

    def require_unused(self, batch: PlannedBatch) -> None:
        """Refuses a plan that another pass is training on.

        Raises:
            FailedPreconditionError: that pass has not ended yet.
        """
        self._discard_dropped()
        with self._lock:
            if any(each.batch.plan is batch.plan for each in self._passes.values()):
                raise FailedPreconditionError(
                    "forward: this planned batch is being trained on already; plan the batch again for a second pass"
                )

    def open(self, batch: PlannedBatch, device: torch.device, latest: Tensor | None) -> GraphEnd:
        """A pass for a plan that was just read for training."""
        with self._lock:
            key = next(self._keys)
            self._passes[key] = BatchPass(batch, device, latest)
        return GraphEnd(self, key)

    def find(self, key: int) -> BatchPass | None:
        """The pass of this key, until it ends."""
        with self._lock:
            return self._passes.get(key)

    def add_gradient(self, batch_pass: BatchPass, gradient: RowGradients) -> None:
        """Adds to the pass, which takes part in the next step from now on."""
        with self._lock:
            earlier = batch_pass.gradient
            batch_pass.gradient = gradient.values if earlier is None else earlier + gradient.values
            # A sum of finite gradients may be infinite.
            batch_pass.is_finite = gradient.is_finite and earlier is None

    def ready(self) -> list[BatchPass]:
        """The passes of the next step, in the order of their batches."""
        self._discard_dropped()
        with self._lock:
            ready = [each for each in self._passes.values() if each.gradient is not None and not each.is_taken]
        return sorted(ready, key=lambda each: each.stamp.seq)

    def take(self, passes: Sequence[BatchPass]) -> None:
        """These are no longer for the next step: one was made of them."""
        with self._lock:
            for each in passes:
                each.is_taken = True

    def give_back(self, passes: Sequence[BatchPass]) -> None:
        """The step was not applied: they are for the next one again."""
        with self._lock:
            for each in passes:
                each.is_taken = False

    def close_applied(self, applied: Sequence[BatchPass]) -> None:
        """Ends these, which the store has taken, and those that they overtook: stores take batches in order."""
        newest = {each.stamp.worker: each.stamp.seq for each in applied}
        with self._lock:
            ended = [key for key, each in self._passes.items() if each.stamp.seq <= newest.get(each.stamp.worker, -1)]
            overtaken = [each for each in map(self._passes.pop, ended) if each not in applied]
        for each in overtaken:
            self._worker.discard(each.batch.plan)

    def discard(self) -> int:
        """Drops all gradients of the next step; returns how many passes they came from."""
        ready = self.ready()
        self.drop(ready)
        return len(ready)

    def drop(self, passes: Sequence[BatchPass]) -> None:
        """Ends these without an update."""
        with self._lock:
            self._passes = {key: each for key, each in self._passes.items() if each not in passes}
        for each in passes:
            self._worker.discard(each.batch.plan)

    def _discard_dropped(self) -> None:
        while self.dropped_graphs:
            key = self.dropped_graphs.popleft()
            with self._lock:
                found = self._passes.get(key)
                if found is None or found.gradient is not None:
                    continue
                del self._passes[key]
            self._worker.discard(found.batch.plan)


class GradientStep:
    """Gradients that `Embeddings.take_step` took, and how they are to be applied: by exactly one call of `apply`.

    Made in one thread, applied in any. Steps of one module are applied in the order in which they were taken, the next
    one is taken after that.
    """

    __slots__ = ("_ledger", "_passes", "_rule", "_worker")

    def __init__(
        self, worker: StoreWorker, ledger: Ledger, passes: Sequence[BatchPass], rule: Callable[[int], Update]
    ) -> None:
        """Takes how the update is made once the push before it is known."""
        self._worker = worker
        self._ledger = ledger
        self._passes = passes
        self._rule = rule
        ledger.take(passes)

    def apply(self) -> Applied:
        """One optimizer step for every id; any thread may call it.

        Raises:
            InvalidArgumentError: a gradient is not finite. No row changed; the gradients were dropped, as they would be
                refused again and the next step with them. After any other error they are back in the module.
        """
        updates = [(each.batch.plan, each.gradient) for each in self._passes if each.gradient is not None]
        try:
            applied = self._worker.apply(updates, self._rule(self._worker.last_push))
        except InvalidArgumentError:
            self._ledger.drop(self._passes)
            raise
        except BaseException:
            self._ledger.give_back(self._passes)
            raise
        self._ledger.close_applied(self._passes)
        _require_new(applied, self._passes)
        return applied


def _require_new(applied: Applied, passes: Sequence[BatchPass]) -> None:
    """Refuses to go on with batch numbers that are not the store's: it would take every step for a repeated one."""
    if applied.duplicate and not all(each.batch.is_replayable for each in passes):
        raise FailedPreconditionError(
            f"step: the store had applied batch {passes[-1].stamp.seq} before and did nothing; the batch was planned"
            " before the module joined its store: plan it again"
        )


def times_of(passes: Sequence[BatchPass], now: int) -> int | Tensor:
    """The times of an update: one number if all agree, else one for each id of all passes end to end."""
    times = [now if each.batch.times is None else each.batch.times for each in passes]
    if all(isinstance(time, int) for time in times) and len(set(times)) == 1:
        return times[0]
    sizes = [int(each.batch.shape.sizes.sum()) for each in passes]
    return torch.cat(
        [
            torch.full((size,), time, dtype=torch.int64) if isinstance(time, int) else time
            for time, size in zip(times, sizes, strict=True)
        ]
    )


def gradient_norm(passes: Sequence[BatchPass], schema: Schema) -> Tensor:
    """L2 norm of the gradients of all rows; a row that several passes met has the sum of its gradients."""
    found = [(each.batch.plan, each.gradient.cpu()) for each in passes if each.gradient is not None]
    if len(found) == 1:
        return _norm(found[0][1])
    return _norm(torch.stack([_norm(_merged_rows(found, schema, table)) for table in range(len(schema.tables))]))


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = vector_norm(values)
    return norm


def _merged_rows(found: Sequence[tuple[Plan, Tensor]], schema: Schema, table: int) -> Tensor:
    """[distinct ids of all plans, dim]: the gradients of one table."""
    dim = schema.dims[table]
    ids, rows = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dim)]
    for plan, gradient in found:
        ids.append(plan.unique_ids[plan.tables == table])
        rows.append(values_of(plan, gradient, schema.dims, [number == table for number in range(len(schema.dims))]))
    rows = [each.view(-1, dim) for each in rows]
    distinct, inverse = np.unique(torch.cat(ids).numpy(), return_inverse=True)
    return torch.zeros(len(distinct), dim).index_add_(0, torch.from_numpy(inverse), torch.cat(rows))


def values_of(plan: Plan, values: Tensor, dims: Sequence[int], wanted: Sequence[bool]) -> Tensor:
    """Of flat values in plan order: those of some tables, on their device."""
    if all(wanted):
        return values
    tables = plan.tables
    is_wanted = torch.tensor(wanted)[tables].repeat_interleave(torch.tensor(dims)[tables])
    return values[is_wanted.to(values.device)]
