"""From the keys of stored rows back to the ids that users gave: which rows of a block are a slot's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.slot_keys import ids_of_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from monolith.nn._merge import PlacedSlot
    from monolith.tables.row_block import RowBlock


def rows_of_slot(
    block: RowBlock, slot: PlacedSlot, wide_slots: Sequence[int]
) -> tuple[NDArray[np.intp] | None, NDArray[np.int64]]:
    """Which rows of a block of its table a slot has (None: all of them), and their ids as the user knows them."""
    keys = block.keys
    if slot.number is None:
        return None, keys
    found = ids_of_keys(keys, block.bucket, wide_slots)
    chosen = (found.slots == slot.number).nonzero()[0]
    return chosen, keys[chosen] if slot.slot.id_layout == "v2" else found.ids[chosen]
