"""How close a user's history is to an item, with attention to the order of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_positive, require_shape
from monolith.nn.layers.attention import masked_softmax, zero_masked
from monolith.nn.layers.dense import Dense

if TYPE_CHECKING:
    from monolith.nn.layers.activations import Activation


class DMR_U2I(nn.Module):  # noqa: N801 - the name of the paper and of ByteDance Monolith
    """The user-to-item network of deep match to rank: ``[B, item_dim]``.

    ``a_t = softmax over t of z . (pos_t + x_t E + b)``; ``y = act((sum over t of a_t x_t) W + c) * item``. An empty
    history is pooled to zeros. The element-by-element product takes the place of the paper's inner product and of its
    auxiliary loss.

    Reference: Lyu et al., Deep Match to Rank, AAAI 2020.

    Args:
        item_dim: Size of the item.
        sequence_dim: Size of a step of the history.
        max_length: Number of positions; longer histories are rejected.
        cmp_dim: Size of the attention's hidden layer.
        activation: act.
    """

    def __init__(
        self, item_dim: int, sequence_dim: int, *, max_length: int, cmp_dim: int, activation: Activation = "prelu"
    ) -> None:
        super().__init__()
        require_positive("DMR_U2I", item_dim=item_dim, sequence_dim=sequence_dim)
        require_positive("DMR_U2I", max_length=max_length, cmp_dim=cmp_dim)
        self.item_dim = item_dim
        self.sequence_dim = sequence_dim
        self.max_length = max_length
        self.positions = nn.Parameter(nn.init.xavier_uniform_(torch.empty(max_length, cmp_dim)))
        self.embedding = nn.Parameter(nn.init.xavier_uniform_(torch.empty(sequence_dim, cmp_dim)))
        self.z = nn.Parameter(torch.ones(cmp_dim))
        self.bias = nn.Parameter(torch.zeros(cmp_dim))
        self.dense = Dense(sequence_dim, item_dim, activation=activation)

    def forward(self, item: Tensor, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, item_dim]`` for `item` ``[B, item_dim]``, `sequence` ``[B, T, sequence_dim]`` and `mask` ``[B, T]``."""
        require_shape("DMR_U2I", "item", item, ("B", self.item_dim))
        require_shape("DMR_U2I", "sequence", sequence, (item.shape[0], "T", self.sequence_dim))
        length = sequence.shape[1]
        if length > self.max_length:
            raise ValueError(f"DMR_U2I: sequence must have at most {self.max_length} steps, got {length}; cut it first")
        x = zero_masked("DMR_U2I", sequence, mask)
        weights = masked_softmax((self.positions[:length] + x @ self.embedding + self.bias) @ self.z, mask)
        pooled: Tensor = self.dense(torch.einsum("bt,btd->bd", weights, x))
        return pooled * item
