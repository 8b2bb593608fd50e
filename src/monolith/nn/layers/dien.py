"""How an interest developed: recurrence over the history, steered by the candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_positive, require_shape
from monolith.nn.layers.attention import masked_softmax
from monolith.nn.layers.gru import AGRUCell, rnn_with_attention

if TYPE_CHECKING:
    from monolith.nn.layers.gru import AttentionType


class DIEN(nn.Module):
    """Deep interest evolution network: ``[B, units]``.

    A GRU over the keys gives interests ``h_t``; ``a_t = softmax over t of (q W^T) . h_t``; a second GRU over the
    interests, steered by ``a_t`` (see `AGRUCell`), gives its last state. Masked steps have no weight and leave the
    states as they were; an empty history gives zeros.

    Reference: Zhou et al., DIEN, arXiv:1809.03672.

    Args:
        dim: Size of the keys.
        units: Size of both states.
        query_dim: Size of the query; `units` by default.
        att_type: "AGRU" or "AUGRU"; the paper prefers the second.
    """

    def __init__(self, dim: int, units: int, *, query_dim: int | None = None, att_type: AttentionType = "AGRU") -> None:
        super().__init__()
        self.query_dim = units if query_dim is None else query_dim
        require_positive("DIEN", dim=dim, units=units, query_dim=self.query_dim)
        self.dim = dim
        self.units = units
        self.extractor = AGRUCell(dim, units)
        self.evolution = AGRUCell(units, units, att_type=att_type)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(units, self.query_dim)))

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the interest ``[B, units]`` in `query` ``[B, query_dim]`` of the history `keys` ``[B, T, dim]``."""
        require_shape("DIEN", "query", query, ("B", self.query_dim))
        require_shape("DIEN", "keys", keys, (query.shape[0], "T", self.dim))
        interests, _ = rnn_with_attention(self.extractor, keys, mask=mask)
        logits = torch.einsum("bu,btu->bt", query @ self.weight.T, interests)
        _, last = rnn_with_attention(self.evolution, interests, masked_softmax(logits, mask), mask=mask)
        return last
