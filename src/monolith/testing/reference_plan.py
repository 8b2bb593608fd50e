"""The batches of the reference: the distinct ids of a batch, and the summed gradients of several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from monolith.errors import InvalidArgumentError
from monolith.tables.history import NUM_BUCKETS
from monolith.testing.reference_format import RowName, name_of_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.tables.batch import BatchStamp, Update
    from monolith.testing.reference_rows import DictionaryTable

Pair: TypeAlias = tuple[int, RowName]
"""A table, and an id of it."""


@dataclass(slots=True, eq=False, kw_only=True)
class ReferencePlan:
    """The distinct (table, id) pairs of a batch."""

    store: object
    """The store that made it."""
    stamp: BatchStamp
    pairs: Sequence[Pair]
    """(table, id), by bucket, then table, then first seen."""
    unique_ids: Tensor
    splits: Tensor
    inverse: Tensor
    counts: Tensor
    tables: Tensor
    num_values: int
    core: None = None
    status: str = "new"
    """new, open (read for training), applied or discarded."""


@dataclass(slots=True)
class IdContribution:
    """The contribution of the plans of an update to one id."""

    count: int
    time: int
    gradient: NDArray[np.float32]
    latest: NDArray[np.float32] | None
    """The row as the worker saw it."""


def make_plan(
    store: object,
    tables: Sequence[DictionaryTable],
    ids: Tensor,
    table_splits: Tensor,
    stamp: BatchStamp,
    buckets: Tensor | None,
) -> ReferencePlan:
    """Groups the ids of a batch."""
    splits, keys = table_splits.tolist(), ids.reshape(-1).tolist()
    if len(splits) != len(tables) + 1 or splits[0] != 0 or splits[-1] != len(keys) or sorted(splits) != splits:
        raise InvalidArgumentError(f"table_splits must rise from 0 to {len(keys)}, got {splits}")
    owners = [table for table in range(len(tables)) for _ in range(splits[table], splits[table + 1])]
    if buckets is None:
        require_ids([(tables[table], key) for table, key in zip(owners, keys, strict=True)])
        names = [name_of_id(key) for key in keys]
    else:
        names = [RowName(bucket, key) for bucket, key in zip(_checked(buckets, len(keys)), keys, strict=True)]
    inputs = list(zip(owners, names, strict=True))
    occurrences = Counter(inputs)
    places = {pair: (pair[1].bucket, pair[0]) for pair in inputs}
    pairs = sorted(places, key=places.__getitem__)  # stable: first seen stays first inside a bucket and table
    positions = {pair: position for position, pair in enumerate(pairs)}
    inverse = [positions[pair] for pair in inputs]
    sizes = np.zeros(NUM_BUCKETS * len(tables) + 1, np.int64)
    for bucket, table in (places[pair] for pair in pairs):
        sizes[bucket * len(tables) + table + 1] += 1
    return ReferencePlan(
        store=store,
        stamp=stamp,
        pairs=pairs,
        unique_ids=torch.tensor([name.key for _, name in pairs], dtype=torch.int64),
        splits=torch.from_numpy(np.cumsum(sizes)),
        inverse=torch.tensor(inverse, dtype=torch.int32),
        counts=torch.tensor([occurrences[pair] for pair in pairs], dtype=torch.int32),
        tables=torch.tensor([table for table, _ in pairs], dtype=torch.int64),
        num_values=sum(tables[table].dim for table, _ in pairs),
    )


def require_ids(keys: Sequence[tuple[DictionaryTable, int]]) -> None:
    """Raises if keys do not determine their buckets."""
    for table, key in keys:
        if key < 0 and table.config.wide_slots:
            raise InvalidArgumentError(
                f"table {table.schema.name!r}: key {key} does not contain its bucket; send the bucket with it"
            )


def _checked(buckets: Tensor, num_ids: int) -> list[int]:
    given: list[int] = buckets.tolist()
    if len(given) != num_ids or any(not 0 <= bucket < NUM_BUCKETS for bucket in given):
        raise InvalidArgumentError(f"buckets must be {num_ids} numbers in [0, {NUM_BUCKETS}), got {given}")
    return given


def merge(
    tables: Sequence[DictionaryTable], updates: Sequence[tuple[ReferencePlan, Tensor]], rule: Update
) -> dict[Pair, IdContribution]:
    """Returns by (table, id): gradients summed over the plans in the order given, and the first of the latest rows."""
    if rule.latest is not None and len(rule.latest) != len(updates):
        raise InvalidArgumentError(f"latest must be given for each of {len(updates)} plans, got {len(rule.latest)}")
    merged: dict[Pair, IdContribution] = {}
    start = 0
    for number, (plan, flat) in enumerate(updates):
        gradients = _by_pair(tables, plan.pairs, flat, "gradient")
        latest: dict[Pair, NDArray[np.float32]] = {}
        if rule.latest is not None:
            using = [(table, name) for table, name in plan.pairs if tables[table].config.uses_latest]
            latest = _by_pair(tables, using, rule.latest[number], "latest")
        times = _newest_times(plan, rule.times, start)
        for pair, count, time in zip(plan.pairs, plan.counts.tolist(), times, strict=True):
            gradient, before = gradients[pair], merged.get(pair)
            if before is None:
                merged[pair] = IdContribution(count, time, gradient.copy(), latest.get(pair))
            else:
                before.count += count
                before.time = max(before.time, time)
                with np.errstate(over="ignore", invalid="ignore"):  # the caller checks whether it is finite
                    before.gradient = before.gradient + gradient
        start += len(plan.inverse)
    return merged


def _by_pair(
    tables: Sequence[DictionaryTable], pairs: Sequence[Pair], values: Tensor, name: str
) -> dict[Pair, NDArray[np.float32]]:
    """Returns the rows of these pairs from concatenated values."""
    flat = values.detach().numpy()
    ends = np.cumsum([0, *(tables[table].dim for table, _ in pairs)])
    if flat.shape != (ends[-1],):
        raise InvalidArgumentError(f"apply: {name} must have shape ({ends[-1]},), got {flat.shape}")
    return {pair: flat[begin:end] for pair, begin, end in zip(pairs, ends[:-1], ends[1:], strict=True)}


def _newest_times(plan: ReferencePlan, times: int | Tensor, start: int) -> list[int]:
    """Returns for each pair the newest time of its occurrences; `start` is where the plan's inputs begin in `times`."""
    if not isinstance(times, torch.Tensor):
        return [int(times)] * len(plan.pairs)
    newest = [0] * len(plan.pairs)
    for position, at in enumerate(plan.inverse.tolist()):
        newest[at] = max(newest[at], int(times[start + position]))
    return newest
