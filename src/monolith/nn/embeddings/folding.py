"""Folds many passes into one that makes the same update: the same ids, and gradients added in the same order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.tables.slot_keys import buckets_of_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.nn.embeddings.passes import BatchPass
    from monolith.nn.embeddings.worker import StoreWorker
    from monolith.tables.batch import Plan


def foldable(passes: Sequence[BatchPass]) -> list[BatchPass]:
    """Returns the longest run of consecutive batches whose passes can be folded into one.

    No backward pass reaches them any more, and either all or none learn at the time of the step.
    """
    kinds = itertools.groupby(
        passes, lambda each: (each.is_final, each.stamp.worker, each.times is None, each.latest is None)
    )
    return max((list(run) for kind, run in kinds if kind[0]), key=len, default=[])


def fold(passes: Sequence[BatchPass], worker: StoreWorker, latest_dims: Sequence[int]) -> BatchPass:
    """Returns one pass with the occurrences of all, the sum of their gradients, and the stamp of the last.

    Its plan was opened at the store; the plans of `passes` are still to be ended.
    """
    dims = worker.store.schema.dims
    inputs = [_inputs(each.plan, len(dims)) for each in passes]
    ids, tables, buckets = (torch.cat(each) for each in zip(*inputs, strict=True))
    order = torch.argsort(tables, stable=True)
    splits = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(tables, minlength=len(dims)).cumsum(0)])
    plan = worker.store.plan(ids[order], splits, stamp=passes[-1].stamp, buckets=buckets[order])
    unique = torch.empty(len(order), dtype=torch.int64)
    unique[order] = plan.inverse.long()  # input of all passes end to end -> its place in the new plan
    places = [
        torch.empty(len(each.plan.unique_ids), dtype=torch.int64).index_copy_(0, each.plan.inverse.long(), part)
        for each, part in zip(passes, torch.split(unique, [len(each[0]) for each in inputs]), strict=True)
    ]
    parts = [(each.plan, place) for each, place in zip(passes, places, strict=True)]
    worker.read(plan, train=True)
    return replace(
        passes[-1],
        plan=plan,
        times=_times(passes, order),
        is_replayable=all(each.is_replayable for each in passes),
        pooled=None,
        gradient=_combined(plan, parts, [each.gradient for each in passes], dims, add=True),
        latest=None
        if passes[0].latest is None
        else _combined(plan, parts, [each.latest for each in passes], latest_dims, add=False),
        is_finite=False,  # a sum of finite gradients may be infinite
        is_settled=all(each.is_settled for each in passes),
        is_taken=False,
    )


def _inputs(plan: Plan, num_tables: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ids, tables and buckets of a batch in input order, tables end to end."""
    inverse = plan.inverse.long()
    buckets = torch.from_numpy(buckets_of_plan(plan.splits.numpy(), num_tables).astype(np.int16))
    return plan.unique_ids[inverse], plan.tables[inverse], buckets[inverse]


def _times(passes: Sequence[BatchPass], order: Tensor) -> int | Tensor | None:
    times = [each.times for each in passes]
    if times[0] is None or (all(isinstance(time, int) for time in times) and len(set(times)) == 1):
        return times[0]
    per_id = [
        time if isinstance(time, torch.Tensor) else torch.full((len(each.plan.inverse),), int(time or 0))
        for time, each in zip(times, passes, strict=True)
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
    given = [each for each in values if each is not None]
    offsets = _offsets(plan, dims)
    total = given[0].new_zeros(int(torch.tensor(dims)[plan.tables].sum()))
    is_first = torch.ones(len(plan.unique_ids), dtype=torch.bool)
    for (part, place), own in zip(parts, given, strict=True):
        starts = _offsets(part, dims)
        for table, dim in enumerate(dims):
            mine = part.tables == table
            within = torch.arange(dim)
            to = offsets[place[mine]][:, None] + within
            new = own[starts[mine][:, None] + within]
            # The first gradient is copied: adding it to 0 would turn -0 into 0.
            old = total[to] + new if add else total[to]
            total[to] = torch.where(is_first[place[mine]][:, None].to(new.device), new, old)
        is_first[place] = False
    return total


def _offsets(plan: Plan, dims: Sequence[int]) -> Tensor:
    """Returns int64 [U]: where the values of each distinct id begin."""
    sizes = torch.tensor(dims)[plan.tables]
    return sizes.cumsum(0) - sizes
