"""What a step makes of the gradients of passes: one update of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.linalg import vector_norm

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.nn._refused_step import refusal_of
from monolith.tables.slot_keys import buckets_of_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monolith.nn._passes import BatchPass, Ledger
    from monolith.nn._pooling import PooledLayout
    from monolith.nn._worker import StoreWorker
    from monolith.tables.batch import Applied, Plan, Update
    from monolith.tables.schema import Schema


class GradientStep:
    """Gradients that `Embeddings.take_step` took, and how they are to be applied: by exactly one call of `apply`.

    Made in one thread, applied in any. Steps of one module are applied in the order in which they were taken, the next
    one is taken after that.
    """

    __slots__ = ("_layout", "_ledger", "_passes", "_rule", "_worker")

    def __init__(
        self,
        worker: StoreWorker,
        ledger: Ledger,
        passes: Sequence[BatchPass],
        rule: Callable[[int], Update],
        layout: PooledLayout,
    ) -> None:
        """Takes how the update is made once the push before it is known."""
        self._layout = layout
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
        updates = [(each.plan, each.gradient) for each in self._passes if each.gradient is not None]
        try:
            rule = self._rule(self._worker.last_push)
            applied = self._worker.apply(updates, rule)
        except InvalidArgumentError as error:
            self._ledger.drop(self._passes)
            reason = refusal_of(self._passes, self._layout, rule.scale) if "not finite" in str(error) else None
            if reason is None:
                raise
            raise InvalidArgumentError(reason) from error
        except BaseException:
            self._ledger.give_back(self._passes)
            raise
        self._ledger.close_applied(self._passes)
        _require_new(applied, self._passes)
        return applied


def _require_new(applied: Applied, passes: Sequence[BatchPass]) -> None:
    """Refuses to go on with batch numbers that are not the store's: it would take every step for a repeated one."""
    if applied.duplicate and not all(each.is_replayable for each in passes):
        raise FailedPreconditionError(
            f"step: the store had applied batch {passes[-1].stamp.seq} before and did nothing; the batch was planned"
            " before the module joined its store: plan it again"
        )


def times_of(passes: Sequence[BatchPass], now: int) -> int | Tensor:
    """The times of an update: one number if all agree, else one for each id of all passes end to end."""
    times = [now if each.times is None else each.times for each in passes]
    if all(isinstance(time, int) for time in times) and len(set(times)) == 1:
        return times[0]
    sizes = [len(each.plan.inverse) for each in passes]
    return torch.cat(
        [
            torch.full((size,), time, dtype=torch.int64) if isinstance(time, int) else time
            for time, size in zip(times, sizes, strict=True)
        ]
    )


def gradient_norm(passes: Sequence[BatchPass], schema: Schema) -> Tensor:
    """L2 norm of the gradients of all rows; a row that several passes met has the sum of its gradients."""
    found = [(each.plan, each.gradient.cpu()) for each in passes if each.gradient is not None]
    if len(found) == 1:
        return _norm(found[0][1])
    return _norm(torch.stack([_norm(_merged_rows(found, schema, table)) for table in range(len(schema.tables))]))


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = vector_norm(values)
    return norm


def _merged_rows(found: Sequence[tuple[Plan, Tensor]], schema: Schema, table: int) -> Tensor:
    """[distinct ids of all plans, dim]: the gradients of one table."""
    dim = schema.dims[table]
    names, rows = [np.empty((0, 2), np.int64)], [torch.empty(0, dim)]
    for plan, gradient in found:
        # Only with its bucket a key stands for one row.
        buckets = buckets_of_plan(plan.splits.numpy(), len(schema.tables))
        own = (plan.tables == table).numpy()
        names.append(np.stack([buckets[own].astype(np.int64), plan.unique_ids.numpy()[own]], axis=1))
        rows.append(values_of(plan, gradient, schema.dims, [number == table for number in range(len(schema.dims))]))
    rows = [each.view(-1, dim) for each in rows]
    distinct, inverse = np.unique(np.concatenate(names), axis=0, return_inverse=True)
    return torch.zeros(len(distinct), dim).index_add_(0, torch.from_numpy(inverse.reshape(-1)), torch.cat(rows))


def values_of(plan: Plan, values: Tensor, dims: Sequence[int], wanted: Sequence[bool]) -> Tensor:
    """Of flat values in plan order: those of some tables, on their device."""
    if all(wanted):
        return values
    tables = plan.tables
    is_wanted = torch.tensor(wanted)[tables].repeat_interleave(torch.tensor(dims)[tables])
    return values[is_wanted.to(values.device)]
