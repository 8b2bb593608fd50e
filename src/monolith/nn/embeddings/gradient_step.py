"""A step: turns the gradients of passes into one update and submits it to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.linalg import vector_norm

from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError
from monolith.tables import NOTHING_APPLIED, buckets_of_plan, ids_of_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.nn.embeddings.id_batch import BatchShape
    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.nn.embeddings.passes import BatchPass, PassRegistry
    from monolith.nn.embeddings.pooling import PooledLayout
    from monolith.nn.embeddings.worker import Push, StoreWorker
    from monolith.tables import Applied, Plan, Schema, Update


class GradientStep:
    """Gradients that `Embeddings.take_step` took, to be submitted to the store.

    It ends in exactly one `apply`, or `begin` and `result`, or `drop`. Made in one thread, begun in any; after that it
    is a `Pending`. Begin the steps of one module in the order in which they were taken, and get their results in that
    order.
    """

    __slots__ = (
        "_applied",
        "_error",
        "_layout",
        "_passes",
        "_push",
        "_registry",
        "_rule",
        "_scale",
        "_takes_finite_only",
        "_worker",
    )

    def __init__(
        self,
        worker: StoreWorker,
        registry: PassRegistry,
        passes: Sequence[BatchPass],
        rule: Callable[[int], Update],
        layout: PooledLayout,
        *,
        takes_finite_only: bool = True,
    ) -> None:
        """Takes a function that makes the update from the number of the previous push."""
        self._layout = layout
        self._takes_finite_only = takes_finite_only
        self._worker = worker
        self._registry = registry
        self._passes = passes
        self._rule = rule
        self._scale = 1.0
        self._push: Push | None = None
        self._applied: Applied | None = None
        self._error: BaseException | None = None
        registry.take(passes)

    @property
    def is_remote(self) -> bool:
        """Whether `begin` returns while the update is still in flight to other processes."""
        return self._worker.store.traits.remote

    def refusal(self) -> str | None:
        """Returns why the store would reject the step: the id whose gradient is not finite; None: it would not.

        For ranks that make a step together, or none of them does.
        """
        if not self._takes_finite_only:
            return None
        scale = self._rule(NOTHING_APPLIED).scale
        if abs(scale) <= 1 and all(batch_pass.is_finite for batch_pass in self._passes):
            return None
        gradients = [batch_pass.gradient for batch_pass in self._passes if batch_pass.gradient is not None]
        if len(gradients) == 1 and bool(torch.isfinite(gradients[0].sum() * scale)):
            return None
        return refusal_of(self._passes, self._layout, scale)

    def apply(self) -> Applied:
        """Makes one optimizer step for every id; any thread may call it.

        Raises:
            InvalidArgumentError: a gradient is not finite. No row changed; the gradients were dropped, as they would be
                rejected again and the next step with them. After any other error they are back in the module.
        """
        self.begin()
        try:
            return self.result()
        except BaseException:
            self.drop()  # an interrupted wait; after an error this does nothing
            raise

    def begin(self) -> None:
        """Submits the update to the store. From then on reads of the module come after it. Raises like `apply`."""
        updates = [
            (batch_pass.plan, batch_pass.gradient) for batch_pass in self._passes if batch_pass.gradient is not None
        ]
        try:
            rule = self._rule(self._worker.last_push)
            self._scale = rule.scale
            self._push = self._worker.submit(updates, rule)
        except BaseException as error:
            self._error = self._refuse(error)
            if self._error is not error:
                raise self._error from error
            raise
        self._registry.submit(self._passes)

    def done(self) -> bool:
        """Returns whether `result` returns without waiting."""
        return self._is_over or (self._push is not None and self._push.pending.done())

    def result(self, timeout_seconds: float | None = None) -> Applied:
        """Waits for the store and returns the counts of the update, which must have been begun.

        Raises:
            DeadlineExceededError: no answer came within `timeout_seconds`; call again to keep waiting.
            OpError: what `apply` raises, with the name of the batch.
        """
        push = self._push
        if not self._is_over and push is not None:
            try:
                self._applied = push.pending.result(timeout_seconds)
            except Exception as error:
                if timeout_seconds is not None and not push.pending.done():
                    raise
                self._worker.rollback(push)
                self._error = self._refuse(error)
            else:
                self._worker.confirm(push)
                self._registry.close_applied(self._passes)
                _require_new(self._applied, self._passes)
        if self._error is not None:
            named = self._named(self._error)
            raise named from (named.__cause__ if named is self._error else self._error)
        if self._applied is None:
            raise FailedPreconditionError("step: result() was called before begin(); call begin() first")
        return self._applied

    def drop(self) -> None:
        """Abandons the update; a submitted one is completed or failed by the store. Idempotent."""
        if self._is_over:
            return
        if self._push is None:
            self._registry.drop(self._passes)
        else:
            self._registry.close_handed_over(self._passes)

    @property
    def _is_over(self) -> bool:
        return self._applied is not None or self._error is not None

    def _refuse(self, error: BaseException) -> BaseException:
        """Ends or gives back the passes of a step that was not applied; returns the error to raise."""
        if not isinstance(error, InvalidArgumentError):
            self._registry.give_back(self._passes)
            return error
        self._registry.drop(self._passes)
        reason = refusal_of(self._passes, self._layout, self._scale) if "not finite" in str(error) else None
        if reason is None:
            return error
        rejection = InvalidArgumentError(reason)
        rejection.__cause__ = error
        return rejection

    def _named(self, error: BaseException) -> BaseException:
        """Adds the batch to an error, which may be raised in a later step than that of the batch."""
        if not isinstance(error, OpError):
            return error
        first, last = self._passes[0].stamp, self._passes[-1].stamp
        which = f"batch {last.seq}" if first.seq == last.seq else f"batches {first.seq} to {last.seq}"
        return type(error)(f"step: the push of {which} of worker {last.worker} failed: {error}")


def _require_new(applied: Applied, passes: Sequence[BatchPass]) -> None:
    """Raises if batch numbers do not match the store's, which would take every step for a duplicate."""
    if applied.duplicate and not all(batch_pass.is_replayable for batch_pass in passes):
        raise FailedPreconditionError(
            f"step: the store had applied batch {passes[-1].stamp.seq} before and did nothing; the batch was planned"
            " before the module joined its store: plan it again"
        )


def times_of(passes: Sequence[BatchPass], now: int) -> int | Tensor:
    """Returns the times of an update: one number if all agree, else one for each id of all passes end to end."""
    times = [now if batch_pass.times is None else batch_pass.times for batch_pass in passes]
    if all(isinstance(time, int) for time in times) and len(set(times)) == 1:
        return times[0]
    sizes = [len(batch_pass.plan.inverse) for batch_pass in passes]
    return torch.cat(
        [
            torch.full((size,), time, dtype=torch.int64) if isinstance(time, int) else time
            for time, size in zip(times, sizes, strict=True)
        ]
    )


def gradient_norm(passes: Sequence[BatchPass], schema: Schema) -> Tensor:
    """Returns the L2 norm of the gradients of all rows; a row in several passes has the sum of its gradients."""
    updates = [(batch_pass.plan, batch_pass.gradient) for batch_pass in passes if batch_pass.gradient is not None]
    if len(updates) == 1:
        return _norm(updates[0][1]).cpu()
    norms = [_norm(_merged_rows(updates, schema, table)).cpu() for table in range(len(schema.tables))]
    return _norm(torch.stack(norms))


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = vector_norm(values)
    if not torch.isfinite(norm):  # squares of large values may be too large for float32, though the norm is not
        norm = vector_norm(values, dtype=torch.float64).to(values.dtype)
    return norm


def _merged_rows(updates: Sequence[tuple[Plan, Tensor]], schema: Schema, table: int) -> Tensor:
    """Returns [distinct ids of all plans, dim]: the gradients of one table, on their device."""
    dim = schema.dims[table]
    names: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
    rows = [updates[0][1].new_empty(0, dim) if updates else torch.empty(0, dim)]
    for plan, gradient in updates:
        # A key identifies one row only together with its bucket.
        buckets = buckets_of_plan(plan.splits.numpy(), len(schema.tables))
        own = (plan.tables == table).numpy()
        names.append(np.stack([buckets[own].astype(np.int64), plan.unique_ids.numpy()[own]], axis=1))
        rows.append(values_of(plan, gradient, schema.dims, [number == table for number in range(len(schema.dims))]))
    rows = [part.view(-1, dim) for part in rows]
    distinct, inverse = np.unique(np.concatenate(names), axis=0, return_inverse=True)
    places = torch.from_numpy(inverse.reshape(-1)).to(rows[0].device)
    return rows[0].new_zeros(len(distinct), dim).index_add_(0, places, torch.cat(rows))


def values_of(plan: Plan, values: Tensor, dims: Sequence[int], is_chosen_table: Sequence[bool]) -> Tensor:
    """Returns, of flat values in plan order, those of some tables, on their device."""
    if all(is_chosen_table):
        return values
    tables = plan.tables
    is_chosen_value = torch.tensor(is_chosen_table)[tables].repeat_interleave(torch.tensor(dims)[tables])
    return values[is_chosen_value.to(values.device)]


# The store has only tables and keys; this module maps them back.


def refusal_of(passes: Sequence[BatchPass], layout: PooledLayout, scale: float) -> str | None:
    """Names the first id whose gradients, added up over the passes, are not finite; None if all are."""
    sums: dict[tuple[int, int, int], NDArray[np.float32]] = {}
    dims = np.array(layout.dims)
    for batch_pass in passes:
        if batch_pass.gradient is None:
            continue
        tables, buckets = batch_pass.plan.tables.numpy(), buckets_of_plan(batch_pass.plan.splits.numpy(), len(dims))
        names = zip(tables.tolist(), buckets.tolist(), batch_pass.plan.unique_ids.tolist(), strict=True)
        parts = np.split(batch_pass.gradient.cpu().numpy(), np.cumsum(dims[tables])[:-1])
        for unique, (name, part) in enumerate(zip(names, parts, strict=False)):  # nothing is split to one part
            with np.errstate(over="ignore", invalid="ignore"):
                sums[name] = sums[name] + part if name in sums else part
                is_finite = np.isfinite(sums[name] * np.float32(scale)).all()
            if not is_finite:
                return _message(batch_pass, layout, unique, bucket=name[1])
    return None


def _message(batch_pass: BatchPass, layout: PooledLayout, unique: int, *, bucket: int) -> str:
    key = int(batch_pass.plan.unique_ids[unique])
    if batch_pass.pooled is None:  # folded from several passes: the example is unknown
        slot, where = _slot_of(layout, int(batch_pass.plan.tables[unique]), key, bucket), ""
    else:
        place, example = _place_of(
            batch_pass.pooled.shape, int(np.flatnonzero(batch_pass.plan.inverse.numpy() == unique)[0])
        )
        slot, where = layout.slots[place], f" in example {example}"
    return (
        f"slot {slot.name!r}: the gradient of id {_user_id(slot, key, bucket)}{where} is not finite; nothing was"
        " applied, and the gradients of this step were dropped: continue with the next batch. Check the loss for NaN,"
        " or give Embeddings nonfinite='skip' to skip such rows, 'apply' to accept them"
    )


def _place_of(shape: BatchShape, position: int) -> tuple[int, int]:
    """Returns the index of the slot, and the example, of a position among the ids of a batch."""
    ends = np.cumsum(shape.sizes)
    place = int(np.searchsorted(ends, position, side="right"))
    return place, shape.example_of(place, position - int(ends[place] - shape.sizes[place]))


def _slot_of(layout: PooledLayout, table: int, key: int, bucket: int) -> PlacedSlot:
    own = [layout.slots[place] for place in layout.slots_of_tables[table]]
    wide = sorted({slot.number for slot in own if slot.wide_index is not None and slot.number is not None})
    number = ids_of_keys(np.array([key]), bucket, wide).slots[0]
    return next((slot for slot in own if slot.number == number), own[0])


def _user_id(slot: PlacedSlot, key: int, bucket: int) -> int:
    if slot.slot.id_layout in {"any", "v2"}:  # the id is the key
        return key
    return int(ids_of_keys(np.array([key]), bucket).ids[0])
