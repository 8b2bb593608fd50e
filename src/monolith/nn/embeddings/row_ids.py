"""From the keys of stored rows back to the ids that users gave: the one place that takes keys apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.ids import SIGNATURE_BITS_V2
from monolith.tables.slot_keys import ids_of_keys, wide_index_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.tables.formats.row_block import RowBlock


def rows_of_slot(block: RowBlock, slot: PlacedSlot) -> tuple[NDArray[np.intp] | None, NDArray[np.int64]]:
    """Returns the rows of a block that belong to a slot of its table (None: all), and their ids as users gave them."""
    keys = block.keys
    if slot.number is None:
        return None, keys
    is_own = (keys >> SIGNATURE_BITS_V2) == slot.number
    if slot.wide_index is not None:
        is_own |= (keys < 0) & (wide_index_of(keys) == slot.wide_index)
    chosen = is_own.nonzero()[0]
    own = keys[chosen]
    return chosen, own if slot.slot.id_layout == "v2" else ids_of_keys(own, block.bucket).ids
