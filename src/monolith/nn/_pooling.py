"""From the distinct rows of a plan to the outputs of all slots, and from the gradients of these back to the rows.

Dims: B examples, n ids, U distinct (table, id) pairs, V floats of their rows, W floats of an example's outputs::

    values [V] --by plan.inverse--> a row for each id [n] --combiner--> columns of the slots --> outputs [B, W]

Flat order of slots is that of the ids in a plan: by table, then as in the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.nn import _torch_pooling

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from monolith.nn._id_batch import BatchShape
    from monolith.nn._merge import PlacedSlot
    from monolith.tables.store import Plan


class PooledLayout:
    """Where the rows and outputs of a set of slots are. It never changes; any thread may call it."""

    def __init__(self, slots: Sequence[PlacedSlot], tables: Sequence[str], dims: Sequence[int]) -> None:
        """Takes the slots in flat order, and the tables' rows' dims."""
        self.slots = tuple(slots)
        self.model_slots = tuple(sorted(slots, key=lambda slot: slot.column))
        """In the order of the model, which is that of the columns."""
        self.widths = [slot.width for slot in self.model_slots]
        self.width = sum(self.widths)
        """W."""
        self.dims = tuple(dims)
        self.slots_of_tables = [[place for place, slot in enumerate(slots) if slot.table == name] for name in tables]
        self._model_places = [self.model_slots.index(slot) for slot in slots]

    def in_flat_order(self, of_slots: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What is given in the order of the model."""
        return [of_slots[place] for place in self._model_places]


class PooledBatch:
    """One batch of a layout: made once, used forward and backward."""

    __slots__ = ("layout", "plan", "shape")

    def __init__(self, layout: PooledLayout, plan: Plan, shape: BatchShape) -> None:
        self.layout = layout
        self.plan = plan
        self.shape = shape

    def pool(self, values: Tensor) -> Tensor:
        """The outputs of all slots, float32 [B, W], from the rows of the plan, float32 [V]; on their device."""
        return _torch_pooling.pool(self.layout, values, self.plan, self.shape)

    def sum_gradients(self, whole: Tensor | None, columns: Sequence[Tensor | None], device: torch.device) -> Tensor:
        """The gradient of the rows, float32 [V], from those of the outputs, all on `device`.

        Those of the outputs as a whole [B, W] and of each slot's columns [B, width], in the order of the model, add up;
        None stands for zeros. The gradients of a row are added in a fixed order.
        """
        return _torch_pooling.sum_gradients(self.layout, whole, columns, self.plan, self.shape, device)
