"""Features that attend to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_positive, require_shape
from monolith.nn.layers.attention import MultiHeadAttention
from monolith.nn.layers.pooling import OUT_TYPES, merge_tensor_list

if TYPE_CHECKING:
    from monolith.nn.layers.pooling import OutType


class AutoInt(nn.Module):
    """Self-attention over the features of an example, layer after layer.

    Plain (no `num_heads`): ``X <- softmax(X X^T) X``, without weights. With heads, as in the paper:
    ``X <- relu(MultiHead(X, X, X) + X W_res)`` with learned projections (see `MultiHeadAttention`).

    Reference: Song et al., AutoInt, arXiv:1810.11921.

    Args:
        num_layers: Number of rounds.
        dim: k, of the input ``[B, n, k]``; needed with heads only.
        num_heads: Number of attention heads, a divisor of `dim`. None: the plain form.
        out_type: See `merge_tensor_list`.
    """

    def __init__(
        self,
        num_layers: int = 1,
        *,
        dim: int | None = None,
        num_heads: int | None = None,
        out_type: OutType = "concat",
    ) -> None:
        super().__init__()
        require_positive("AutoInt", num_layers=num_layers)
        require_choice("AutoInt", "out_type", out_type, OUT_TYPES)
        if num_heads is not None and dim is None:
            raise ValueError("AutoInt: num_heads needs dim, the size of a feature, got None")
        self.num_layers = num_layers
        self.out_type: OutType = out_type
        rounds = num_layers if num_heads is not None else 0
        self.attention = nn.ModuleList(MultiHeadAttention(dim or 0, num_heads or 0) for _ in range(rounds))
        self.residual = nn.ModuleList(nn.Linear(dim or 0, dim or 0, bias=False) for _ in range(rounds))

    def forward(self, features: Tensor) -> Tensor | list[Tensor]:
        """Returns the features after all rounds, for `features` ``[B, n, k]``."""
        require_shape("AutoInt", "features", features, ("B", "n", "k"))
        x = features
        if not self.attention:
            for _ in range(self.num_layers):
                x = torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x
        for attention, residual in zip(self.attention, self.residual, strict=True):
            x = torch.relu(attention(x) + residual(x))
        return merge_tensor_list(x, self.out_type)
