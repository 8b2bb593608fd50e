"""Maps the key of a row, and its bucket, back to the slot and the user's id (docs/formats/buckets.md).

Where slots of any int64 share a table, a key alone determines neither, so keys always travel with their buckets: a row
block carries its own, and `buckets_of_plan` returns those of a plan.
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
"""Slots of one table that may take any int64: nine bits of a wide key hold the index of its slot."""
UNKNOWN_SLOT = -1
_BELOW_BUCKET_BITS = 54
_ALL_BUT_INDEX = ~((MAX_WIDE_SLOTS - 1) << _BELOW_BUCKET_BITS)


class SlotIds(NamedTuple):
    """Slots and ids of keys."""

    slots: NDArray[np.int64]
    """Number of each slot; -1 where the table does not have it."""
    ids: NDArray[np.int64]
    """The id, as the user gave it."""


def ids_of_keys(keys: NDArray[np.int64], buckets: int | NDArray[np.integer], wide_slots: Sequence[int] = ()) -> SlotIds:
    """Returns the slot and the id of each key of a table that slots share.

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
    """Returns the number of each key's slot, for which no bucket is needed; -1 where the table does not have it."""
    if not wide_slots:
        return slot_v2(np.ascontiguousarray(keys))
    known = np.array([*wide_slots, UNKNOWN_SLOT], np.int64)
    index = np.minimum(wide_index_of(keys), len(wide_slots))
    return np.where(keys < 0, known[index], slot_v2(np.ascontiguousarray(keys)))


def wide_index_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the index of each wide key's slot among its table's wide slots."""
    index: NDArray[np.int64] = (keys >> _BELOW_BUCKET_BITS) & (MAX_WIDE_SLOTS - 1)
    return index


def moved_keys(
    keys: NDArray[np.int64], source: Sequence[int], target: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Converts keys of a table to those of a table with other wide slots; returns which it accepts, and those.

    Like the core in a restore: wide keys of slots that the target does not have are dropped.
    """
    places = {slot: place for place, slot in enumerate(target)}
    new_index = np.array([*(places.get(slot, -1) for slot in source), -1], np.int64)
    is_wide = (keys < 0) & (len(source) > 0)
    index = np.where(is_wide, new_index[np.minimum(wide_index_of(keys), len(source))], 0)
    moved = np.where(is_wide, (index << _BELOW_BUCKET_BITS) | (keys & _ALL_BUT_INDEX), keys)
    taken = ~is_wide | (index >= 0)
    return taken, moved[taken]


def has_explicit_bucket(keys: NDArray[np.int64], wide_slots: Sequence[int]) -> NDArray[np.bool_]:
    """Returns which keys of a table determine their bucket by themselves, as an id does."""
    return keys >= 0 if wide_slots else np.ones(keys.shape, np.bool_)


def buckets_of_plan(splits: NDArray[np.int64], num_tables: int) -> NDArray[np.uint16]:
    """Returns uint16 [U]: the bucket of each unique id of a plan with these splits."""
    sizes = np.diff(splits[::num_tables])
    return np.repeat(np.arange(len(sizes), dtype=np.uint16), sizes)
