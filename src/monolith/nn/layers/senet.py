"""Features scaled by how much they matter in this example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_positive, require_shape
from monolith.nn.layers.mlp import MLP
from monolith.nn.layers.pooling import OUT_TYPES, merge_tensor_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.nn.layers.pooling import OutType


class SeNet(nn.Module):
    """Squeeze and excitation: ``s_i = mean of x_i; a = sigmoid(relu(s W_1 + b_1) W_2 + b_2); y_i = a_i x_i``.

    Reference: Hu et al., arXiv:1709.01507; for recommenders FiBiNET, arXiv:1905.09433.

    Args:
        num_features: n.
        cmp_dim: Size of the hidden layer.
        out_type: See `merge_tensor_list`.
    """

    def __init__(self, num_features: int, cmp_dim: int, *, out_type: OutType = "concat") -> None:
        super().__init__()
        require_positive("SeNet", num_features=num_features, cmp_dim=cmp_dim)
        require_choice("SeNet", "out_type", out_type, OUT_TYPES)
        self.num_features = num_features
        self.out_type: OutType = out_type
        self.tower = MLP(num_features, [cmp_dim, num_features], activations=["relu", "sigmoid"])

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
        """Returns the scaled features.

        Args:
            features: ``[B, n, k]``, or n tensors ``[B, k_i]`` that may differ in k.
        """
        if isinstance(features, Tensor):
            require_shape("SeNet", "features", features, ("B", self.num_features, "k"))
            weights: Tensor = self.tower(features.mean(dim=2))
            return merge_tensor_list(features * weights.unsqueeze(2), self.out_type)
        if len(features) != self.num_features:
            raise ValueError(f"SeNet: expected {self.num_features} features, got {len(features)}")
        for index, feature in enumerate(features):
            require_shape("SeNet", f"features[{index}]", feature, (features[0].shape[0], "k"))
        weights = self.tower(torch.stack([feature.mean(dim=1) for feature in features], dim=1))
        scaled = [feature * weight for feature, weight in zip(features, torch.split(weights, 1, dim=1), strict=True)]
        return merge_tensor_list(scaled, self.out_type)
