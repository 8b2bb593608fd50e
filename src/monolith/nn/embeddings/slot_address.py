"""From a slot to the keys of its rows and back.

A `SlotAddress` is the location of a slot's rows as a text, enough to find a row without the program that trains it;
`rows_of_slot` takes the keys of stored rows apart.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import torch

from monolith.errors import DataLossError
from monolith.ids import SIGNATURE_BITS_V2
from monolith.nn.combiners import ReduceSum
from monolith.nn.embeddings.id_batch import IdBatchReader
from monolith.nn.embeddings.merge import PlacedSlot
from monolith.nn.slot import Slot
from monolith.tables import ids_of_keys, wide_index_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.nn.embeddings.embeddings import Embeddings
    from monolith.nn.slot import IdLayout
    from monolith.tables.formats import RowBlock


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotAddress:
    """The store and the table of a slot, and what makes keys of its ids."""

    store: str
    """Name of the store on parameter servers."""
    table: str
    dim: int
    id_layout: IdLayout
    number: int | None
    """Number of the slot in the keys of its table; None where the slot has a table of its own."""
    wide_index: int | None
    """Index among the table's slots with wide ids."""

    def to_text(self) -> str:
        """Returns the address as JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> SlotAddress:
        """Parses what `to_text` wrote.

        Raises:
            DataLossError: it is something else.
        """
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise DataLossError(f"address of a slot: JSON with its fields expected, got {text[:200]!r}") from error

    def key_of(self, row_id: int) -> tuple[int, int]:
        """Returns the key of the row of an id, and its bucket.

        Raises:
            InvalidArgumentError: the slot does not take this id.
        """
        keys, buckets = self.keys_of(torch.tensor([row_id]))
        return int(keys[0]), int(buckets[0])

    def keys_of(self, ids: Tensor) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Returns the keys of the rows of some ids, int64 [n], and their buckets.

        Raises:
            InvalidArgumentError: the slot rejects one of them.
        """
        slot = PlacedSlot(
            name="slot",
            slot=Slot(dim=self.dim, id_layout=self.id_layout),
            combiner=ReduceSum(),
            table=self.table,
            number=self.number,
            wide_index=self.wide_index,
            dim=self.dim,
            column=0,
        )
        read = IdBatchReader([slot], [self.table]).read({"slot": ids})
        return read.ids, read.buckets


def slot_addresses(embeddings: Embeddings, store: str) -> dict[str, SlotAddress]:
    """Returns name -> location of the rows of each slot, in a store of this name."""
    return {
        name: SlotAddress(
            store=store,
            table=placed.table,
            dim=placed.dim,
            id_layout=placed.slot.id_layout,
            number=placed.number,
            wide_index=placed.wide_index,
        )
        for name, placed in embeddings.placed.items()
    }


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
