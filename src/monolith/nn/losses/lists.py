"""From a flat batch to lists of candidates, one per query."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.nn._arguments import require_shape

if TYPE_CHECKING:
    from torch import Tensor


class RankLists(NamedTuple):
    """Which rows of a flat batch belong together: lists by ascending rank id, rows as they came."""

    rank_ids: Tensor
    """``[Q]``: the distinct ids, ascending."""
    positions: Tensor
    """int64 ``[Q, L]``: the row of each place; 0 where the list has ended."""
    mask: Tensor
    """bool ``[Q, L]``: True up to the end of the list."""

    def gather(self, values: Tensor, *, padding: float = 0.0) -> Tensor:
        """Returns `values` ``[B]`` as ``[Q, L]`` with `padding` after the ends; differentiable. Use -1 for labels."""
        require_shape("RankLists.gather", "values", values, ("B",))
        if values.shape[0] == 0:
            return values.new_full(self.mask.shape, padding)
        return values[self.positions].masked_fill(~self.mask, padding)


def group_into_lists(rank_ids: Tensor) -> RankLists:
    """Returns the lists of a flat batch whose rows carry the id of their query.

    Args:
        rank_ids: int64 ``[B]``, in any order.

    >>> lists = group_into_lists(torch.tensor([7, 3, 7]))
    >>> lists.gather(torch.tensor([1.0, 0.0, 2.0]), padding=-1.0)
    tensor([[ 0., -1.],
            [ 1.,  2.]])
    """
    require_shape("group_into_lists", "rank_ids", rank_ids, ("B",))
    distinct, list_of_row, lengths = torch.unique(rank_ids, return_inverse=True, return_counts=True)
    order = torch.argsort(list_of_row, stable=True)
    longest = int(lengths.max()) if len(lengths) else 0
    mask = torch.arange(longest, device=rank_ids.device) < lengths.unsqueeze(1)
    positions = torch.zeros(mask.shape, dtype=torch.int64, device=rank_ids.device)
    positions[mask] = order
    return RankLists(distinct, positions, mask)
