"""From the key of a row, and the bucket it lies in, back to the slot and the user's id (docs/formats/buckets.md).

A key alone tells neither where slots of any int64 share a table, so whoever has keys has their buckets, too: a row
block says its own, and `buckets_of_plan` those of a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith import _core
from monolith.ids import slot_v2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_WIDE_SLOTS = 512
"""Slots of one table that may take any int64: nine bits of a wide key say which one it is of."""
UNKNOWN_SLOT = -1
_BELOW_BUCKET_BITS = 54
_ALL_BUT_INDEX = ~((MAX_WIDE_SLOTS - 1) << _BELOW_BUCKET_BITS)


class SlotIds(NamedTuple):
    """Whose row a key is."""

    slots: NDArray[np.int64]
    """Number of each slot; -1 where the table does not know it."""
    ids: NDArray[np.int64]
    """The id, as the user gave it."""


def ids_of_keys(keys: NDArray[np.int64], buckets: int | NDArray[np.integer], wide_slots: Sequence[int] = ()) -> SlotIds:
    """The slot and the id of each key of a table that slots share.

    Args:
        keys: As plans and row blocks of the table have them.
        buckets: Of each key, or of all.
        wide_slots: Those of the table, `TableSchema.wide_slots`.

    >>> import numpy as np
    >>> found = ids_of_keys(np.array([(7 << 48) | 5]), 0, wide_slots=[7])
    >>> found.slots.tolist(), found.ids.tolist()
    ([7], [5])
    """
    of_each = np.ascontiguousarray(np.broadcast_to(np.asarray(buckets, np.uint16), keys.shape))
    return SlotIds(slots_of_keys(keys, wide_slots), _core.ids_of_keys(np.ascontiguousarray(keys), of_each))


def slots_of_keys(keys: NDArray[np.int64], wide_slots: Sequence[int] = ()) -> NDArray[np.int64]:
    """The number of each key's slot, for which no bucket is needed; -1 where the table does not know it."""
    if not wide_slots:
        return slot_v2(np.ascontiguousarray(keys))
    known = np.array([*wide_slots, UNKNOWN_SLOT], np.int64)
    index = np.minimum(wide_index_of(keys), len(wide_slots))
    return np.where(keys < 0, known[index], slot_v2(np.ascontiguousarray(keys)))


def wide_index_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of its table's wide slots each wide key is of."""
    index: NDArray[np.int64] = (keys >> _BELOW_BUCKET_BITS) & (MAX_WIDE_SLOTS - 1)
    return index


def moved_keys(
    keys: NDArray[np.int64], source: Sequence[int], target: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Keys of a table as another table with other wide slots has them: which of them it takes, and those.

    As the core does in a restore: wide keys of slots that the target does not have are left out.
    """
    places = {slot: place for place, slot in enumerate(target)}
    new_index = np.array([*(places.get(slot, -1) for slot in source), -1], np.int64)
    is_wide = (keys < 0) & (len(source) > 0)
    index = np.where(is_wide, new_index[np.minimum(wide_index_of(keys), len(source))], 0)
    moved = np.where(is_wide, (index << _BELOW_BUCKET_BITS) | (keys & _ALL_BUT_INDEX), keys)
    taken = ~is_wide | (index >= 0)
    return taken, moved[taken]


def tells_bucket(keys: NDArray[np.int64], wide_slots: Sequence[int]) -> NDArray[np.bool_]:
    """Which keys of a table tell their bucket by themselves, as an id does."""
    return keys >= 0 if wide_slots else np.ones(keys.shape, np.bool_)


def buckets_of_plan(splits: NDArray[np.int64], num_tables: int) -> NDArray[np.uint16]:
    """uint16 [U]: the bucket of each unique id of a plan with these splits."""
    sizes = np.diff(splits[::num_tables])
    return np.repeat(np.arange(len(sizes), dtype=np.uint16), sizes)
