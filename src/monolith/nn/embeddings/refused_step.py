"""The message of a rejected step: the slot, the id as the user gave it, and the example.

The store has only tables and keys; this module maps them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith.tables.slot_keys import buckets_of_plan, ids_of_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith.nn.embeddings.id_batch import BatchShape
    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.nn.embeddings.passes import BatchPass
    from monolith.nn.embeddings.pooling import PooledLayout


def refusal_of(passes: Sequence[BatchPass], layout: PooledLayout, scale: float) -> str | None:
    """Names the first id whose gradients, added up over the passes, are not finite; None if all are."""
    sums: dict[tuple[int, int, int], NDArray[np.float32]] = {}
    dims = np.array(layout.dims)
    for each in passes:
        if each.gradient is None:
            continue
        tables, buckets = each.plan.tables.numpy(), buckets_of_plan(each.plan.splits.numpy(), len(dims))
        names = zip(tables.tolist(), buckets.tolist(), each.plan.unique_ids.tolist(), strict=True)
        parts = np.split(each.gradient.cpu().numpy(), np.cumsum(dims[tables])[:-1])
        for unique, (name, part) in enumerate(zip(names, parts, strict=False)):  # nothing is split to one part
            with np.errstate(over="ignore", invalid="ignore"):
                sums[name] = sums[name] + part if name in sums else part
                is_finite = np.isfinite(sums[name] * np.float32(scale)).all()
            if not is_finite:
                return _message(each, layout, unique, bucket=name[1])
    return None


def _message(each: BatchPass, layout: PooledLayout, unique: int, *, bucket: int) -> str:
    key = int(each.plan.unique_ids[unique])
    if each.pooled is None:  # folded from several passes: the example is unknown
        slot, where = _slot_of(layout, int(each.plan.tables[unique]), key, bucket), ""
    else:
        place, example = _place_of(each.pooled.shape, int(np.flatnonzero(each.plan.inverse.numpy() == unique)[0]))
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
