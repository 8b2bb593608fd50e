"""All pairs of features, compressed: with fixed and with data-dependent compression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import positive_sizes, require_choice, require_positive, require_shape
from monolith.nn.layers.mlp import MLP
from monolith.nn.layers.pooling import OUT_TYPES, merge_tensor_list

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.mlp import MLPConfig
    from monolith.nn.layers.pooling import OutType


class AllInt(nn.Module):
    """All pairs, compressed to c columns: ``Y = X (X^T C + b)`` for ``X [B, n, k]``, ``C [n, c]``, ``b [c]``.

    ``[B, n, c]``, flattened for "concat". The product with C first keeps the n x n matrix out of memory.

    Args:
        num_features: n.
        cmp_dim: c.
        use_bias: Whether to add b, which starts at 0.
        out_type: See `merge_tensor_list`.
    """

    def __init__(self, num_features: int, cmp_dim: int, *, use_bias: bool = True, out_type: OutType = "concat") -> None:
        super().__init__()
        require_positive("AllInt", num_features=num_features, cmp_dim=cmp_dim)
        require_choice("AllInt", "out_type", out_type, OUT_TYPES)
        self.num_features = num_features
        self.out_type: OutType = out_type
        self.kernel = nn.Parameter(nn.init.xavier_normal_(torch.empty(num_features, cmp_dim)))
        self.bias = nn.Parameter(torch.zeros(cmp_dim)) if use_bias else None

    def forward(self, features: Tensor) -> Tensor | list[Tensor]:
        """Returns the compressed interactions of `features` ``[B, n, k]``."""
        require_shape("AllInt", "features", features, ("B", self.num_features, "k"))
        compressed = features.transpose(1, 2) @ self.kernel
        if self.bias is not None:
            compressed = compressed + self.bias
        return merge_tensor_list(features @ compressed, self.out_type)


class CDot(nn.Module):
    """Compression that depends on the data, then dot products.

    ``P = X^T W`` (``[B, k, p]``); ``M = MLP(flat P)`` (``[B, k p]``); ``y = concat(flat(X M), M)`` with M read as
    ``[B, k, p]`` in the product: ``[B, n p + k p]``.

    Args:
        num_features: n.
        dim: k.
        project_dim: p.
        units: Hidden units of the MLP; its last layer, of size k p, is added here.
        options: `MLP` options.
    """

    def __init__(
        self, num_features: int, dim: int, *, project_dim: int, units: Sequence[int], **options: Unpack[MLPConfig]
    ) -> None:
        super().__init__()
        require_positive("CDot", num_features=num_features, dim=dim, project_dim=project_dim)
        hidden = positive_sizes("CDot", "units", units) if units else ()
        self.num_features = num_features
        self.dim = dim
        self.project_dim = project_dim
        self.projection = nn.Parameter(nn.init.xavier_normal_(torch.empty(num_features, project_dim)))
        self.tower = MLP(dim * project_dim, [*hidden, dim * project_dim], **options)
        self.output_dim = (num_features + dim) * project_dim

    def forward(self, features: Tensor) -> Tensor:
        """``[B, (n + k) p]`` for `features` ``[B, n, k]``."""
        require_shape("CDot", "features", features, ("B", self.num_features, self.dim))
        projected = features.transpose(1, 2) @ self.projection
        compressed: Tensor = self.tower(projected.flatten(1))
        crossed = features @ compressed.reshape(-1, self.dim, self.project_dim)
        return torch.cat([crossed.flatten(1), compressed], dim=1)
