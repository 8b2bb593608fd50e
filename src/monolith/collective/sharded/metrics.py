"""Metrics of the exchanges of a read: how evenly ids and rows are spread over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.collective.sharded.owner import SentIds
    from monolith.collective.sharded.plan import ShardedPlan
    from monolith.tables.local.native_tables import NativeTables

__all__ = ["AlltoallMetrics", "alltoall_metrics"]


class AlltoallMetrics(NamedTuple):
    """Numbers of one batch of one rank, under their names in summaries.

    ``*_splits`` counts what this rank exchanges with each owner for its own batch, ``*_dist`` what each rank exchanges
    with this one as an owner; ids are distinct ids, rows and gradients are counted in floats.
    """

    scalars: dict[str, int]
    histograms: dict[str, list[int]]


def alltoall_metrics(
    native: NativeTables, owned: Sequence[range], plan: ShardedPlan, sent: SentIds, *, slot: str | None
) -> AlltoallMetrics:
    """Returns the numbers of a read.

    Args:
        native: The tables.
        owned: The buckets of each rank.
        plan: Plan of this rank.
        sent: Ids that all ranks have requested of this one.
        slot: A table whose ids are counted as ``<slot>_size``; None: none.
    """
    cells = np.diff(plan.core.splits).reshape(-1, len(native))
    by_owner = np.stack([cells[each.start : each.stop].sum(0) for each in owned])
    ids, floats = plan.message.num_keys, plan.message.num_values
    asked = range(len(owned))
    scalars = {
        "all_fids_size": plan.core.num_ids,
        "Alltoall_id_sizes": sum(ids),
        "Alltoall_emb_sizes": sum(floats),
        "Alltoall_grad_sizes": sum(floats),
        **_extremes("Alltoall_id", ids),
        **_extremes("Alltoall_emb", floats),
    }
    if slot is not None:
        begin, end = plan.table_splits[native.number_of(slot) :][:2].tolist()
        scalars[f"{slot}_size"] = end - begin
    histograms = {
        "shard_sizes": ids,
        "sharded_slot_sizes": by_owner.reshape(-1).tolist(),
        "fused_embedding_splits": (by_owner * np.array(native.dims)).reshape(-1).tolist(),
        "Alltoall_id_dist": [sent.merged.num_keys(rank) for rank in asked],
        "Alltoall_emb_dist": [sent.merged.num_values(rank) for rank in asked],
        "Alltoall_id_splits": ids,
        "Alltoall_emb_splits": floats,
        "Alltoall_grad_splits": floats,
    }
    return AlltoallMetrics(scalars, histograms)


def _extremes(name: str, sizes: Sequence[int]) -> dict[str, int]:
    least, most = int(np.argmin(sizes)), int(np.argmax(sizes))
    return {
        f"{name}_min_idx": least,
        f"{name}_min_size": sizes[least],
        f"{name}_max_idx": most,
        f"{name}_max_size": sizes[most],
    }
