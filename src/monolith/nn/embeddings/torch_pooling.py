"""Pooling by operations of torch, on any device.

A bag is what one output row is made of: the ids of an example, or for `FirstN` the id of one place. On a CPU sums run
over the ids in the order of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from monolith import _core
from monolith.nn.combiners import FirstN, ReduceMean, ReduceSqrtN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith.nn.embeddings.id_batch import BatchShape
    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.nn.embeddings.pooling import PooledLayout
    from monolith.tables import Plan


_MOST_GROUPS = 1 << 20
"""Most rows by which the core groups."""


def pool(layout: PooledLayout, values: Tensor, plan: Plan, shape: BatchShape) -> Tensor:
    """Returns the outputs of all slots, float32 [B, W]."""
    outputs = values.new_empty(shape.num_examples, layout.width)
    rows = _TableRows(plan, layout.dims, values.device)
    for table, places in enumerate(layout.slots_of_tables):
        bags = _Bags.of(layout.slots, shape, places)
        blocks = _sum_bags(rows.of_table(values, table), rows.places(shape, places, table), bags)
        for place, block in zip(places, blocks.split_with_sizes(bags.sizes), strict=True):
            slot = layout.slots[place]
            outputs[:, slot.column : slot.column + slot.width] = block.reshape(shape.num_examples, slot.width)
    return outputs


def sum_gradients(
    layout: PooledLayout,
    whole: Tensor | None,
    columns: Sequence[Tensor | None],
    plan: Plan,
    shape: BatchShape,
    device: torch.device,
) -> Tensor:
    """Returns the gradient of `values`, float32 [V], from those of the outputs [B, W] and of each slot's columns."""
    if whole is not None:
        parts = zip(whole.split_with_sizes(layout.widths, dim=1), columns, strict=True)
        columns = [mine if part is None else mine + part for mine, part in parts]
    gradients = layout.in_flat_order(columns)
    rows = _TableRows(plan, layout.dims, device)
    total = torch.zeros(rows.num_values, dtype=torch.float32, device=device)
    for table, places in enumerate(layout.slots_of_tables):
        bags = _Bags.of(layout.slots, shape, places)
        blocks = [
            _block(gradients[place], size, layout.dims[table], device)
            for place, size in zip(places, bags.sizes, strict=True)
        ]
        summed = _sum_rows(torch.cat(blocks), rows.places(shape, places, table), bags, rows.counts[table])
        rows.write_table(total, table, summed)
    return total


class _TableRows:
    """Where the rows of each table are in the flat values of a plan, which go by bucket first."""

    def __init__(self, plan: Plan, dims: Sequence[int], device: torch.device) -> None:
        self._inverse = plan.inverse.to(device)
        self._dims = torch.tensor(dims)
        self._per_cell = plan.splits.diff().view(-1, len(dims))
        self._device = device
        self.counts = self._per_cell.sum(0).tolist()
        """Distinct ids of each table."""
        self.num_values = int((self._per_cell * self._dims).sum())
        """Floats of the rows of all distinct ids (V)."""

    def of_table(self, values: Tensor, table: int) -> Tensor:
        """Returns the rows of a table, [U of the table, dim]."""
        own = values if len(self._dims) == 1 else values[self._is_value_of(table)]
        return own.view(-1, int(self._dims[table]))

    def write_table(self, values: Tensor, table: int, rows: Tensor) -> None:
        """Writes the rows of a table, the inverse of `of_table`."""
        if len(self._dims) == 1:
            values.copy_(rows.view(-1))
        else:
            values[self._is_value_of(table)] = rows.view(-1)

    def places(self, shape: BatchShape, slots: Sequence[int], table: int) -> Tensor:
        """Returns int64 [ids of the table]: the row of each id. `slots` are those of the table."""
        begin = int(shape.sizes[: slots[0]].sum())
        own = self._inverse[begin : begin + int(shape.sizes[slots].sum())].long()
        return own if len(self._dims) == 1 else self._rank[table][own]

    def _is_value_of(self, table: int) -> Tensor:
        owners = torch.arange(len(self._dims)).repeat(len(self._per_cell))
        return (owners.repeat_interleave((self._per_cell * self._dims).view(-1)) == table).to(self._device)

    @cached_property
    def _rank(self) -> list[Tensor]:
        """Maps a unique id to its number among those of its table; one tensor per table."""
        owners = torch.arange(len(self._dims)).repeat(len(self._per_cell)).repeat_interleave(self._per_cell.view(-1))
        return [((owners == table).cumsum(0) - 1).to(self._device) for table in range(len(self._dims))]


@dataclass(frozen=True, slots=True)
class _Bags:
    """The bags of one table, slot by slot."""

    sizes: list[int]
    """Bags of each slot."""
    kept: NDArray[np.bool_] | None
    """Which ids are in a bag; None: all."""
    bag_of: NDArray[np.int64] | None
    """The bag of each kept id, rising; None: every id is a bag of its own."""
    scales: NDArray[np.float32] | None
    """Factor of the sum of each bag; None: 1."""

    @classmethod
    def of(cls, slots: Sequence[PlacedSlot], shape: BatchShape, places: Sequence[int]) -> _Bags:
        combiners = [slots[place].combiner for place in places]
        sizes = [shape.num_examples * (combiner.max_seq_length or 1) for combiner in combiners]
        if all(shape.ids_per_example[place] == 1 for place in places) and all(
            combiner.max_seq_length <= 1 for combiner in combiners
        ):
            return cls(sizes, None, None, None)
        kept, bag_of, scales, first = [], [], [], 0
        for place, combiner, size in zip(places, combiners, sizes, strict=True):
            lengths = shape.lengths(place)
            examples = np.repeat(np.arange(shape.num_examples), lengths)
            takes_part = np.ones(len(examples), np.bool_)
            bags, scale = examples, np.ones(size, np.float32)
            if isinstance(combiner, FirstN):
                order = np.arange(len(examples)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                takes_part = order < combiner.n
                bags = examples[takes_part] * combiner.n + order[takes_part]
            elif isinstance(combiner, ReduceMean):
                scale /= np.maximum(lengths, 1).astype(np.float32)
            elif isinstance(combiner, ReduceSqrtN):
                scale = (1 / np.sqrt(np.maximum(lengths, 1))).astype(np.float32)
            kept.append(takes_part)
            bag_of.append(bags + first)
            scales.append(scale)
            first += size
        is_kept, scale = np.concatenate(kept), np.concatenate(scales)
        return cls(
            sizes, None if is_kept.all() else is_kept, np.concatenate(bag_of), None if (scale == 1).all() else scale
        )

    def select(self, places: Tensor) -> Tensor:
        """Selects, of one value per id, those of the ids that are in a bag."""
        return places if self.kept is None else places[torch.from_numpy(self.kept).to(places.device)]


def _sum_bags(rows: Tensor, places: Tensor, bags: _Bags) -> Tensor:
    """Returns [bags, dim]: the rows of each bag combined."""
    places = bags.select(places)
    if bags.bag_of is None:
        return rows.index_select(0, places)
    num_bags = sum(bags.sizes)
    if len(places) == 0:
        return rows.new_zeros(num_bags, rows.shape[1])
    starts = np.searchsorted(bags.bag_of, np.arange(num_bags))
    sums = embedding_bag(places, rows, torch.from_numpy(starts).to(rows.device), mode="sum")
    return sums if bags.scales is None else sums * torch.from_numpy(bags.scales).to(rows.device)[:, None]


def _sum_rows(blocks: Tensor, places: Tensor, bags: _Bags, num_rows: int) -> Tensor:
    """Returns [num_rows, dim]: the gradients of the bags of each row added up, in the order of its ids."""
    places = bags.select(places)
    if bags.scales is not None:
        blocks = blocks * torch.from_numpy(bags.scales).to(blocks.device)[:, None]
    if len(places) == 0:
        return blocks.new_zeros(num_rows, blocks.shape[1])
    sources = torch.arange(len(places)) if bags.bag_of is None else torch.from_numpy(bags.bag_of)
    if not blocks.is_cpu:
        sums = blocks.new_zeros(num_rows, blocks.shape[1])
        return sums.index_add_(0, places, blocks.index_select(0, sources.to(blocks.device)))
    order, starts = _group(places, num_rows)
    return embedding_bag(sources[order], blocks, starts, mode="sum")


def _group(places: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Returns the ids of each row, in their order, row after row; and the start of each row."""
    if num_rows > _MOST_GROUPS:
        return places.argsort(stable=True), torch.searchsorted(places.sort().values, torch.arange(num_rows))
    order, counts = map(torch.from_numpy, _core.group_by_index(places.numpy(), num_rows))
    return order, counts.cumsum(0) - counts


def _block(gradient: Tensor | None, num_bags: int, dim: int, device: torch.device) -> Tensor:
    """Returns [bags, dim]: the gradient of one slot's output, bag by bag."""
    if gradient is None:
        return torch.zeros(num_bags, dim, device=device)
    return gradient.reshape(num_bags, dim)
