"""Learning which features, and how many of their dims, are worth keeping."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_positive, require_shape
from monolith.nn.layers.pooling import OUT_TYPES, merge_tensor_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.nn.layers.pooling import OutType


class iRazor(nn.Module):  # noqa: N801 - the name of the paper and of ByteDance Monolith
    """A soft choice, per feature, among groups of embedding dims, the first of which is to drop the feature.

    The bounds ``nas_space = [0, d_1, ..., k]`` cut the k dims into groups; group 0 is empty. For feature i,
    ``p_i = softmax(logits_i / t)`` over the groups, and each dim is multiplied by the p of its group. What p_i gives to
    group 0 is taken from all dims. `auxiliary_loss` is ``sum over i of feature_weight_i * (sum of the mask of i)``.

    With ``nas_space=[0, 1, 3]`` and ``p_i = (p_0, p_1, p_2)`` the mask of feature i is ``(p_1, p_2, p_2)``.

    Reference: Yao et al., i-Razor, arXiv:2204.00281.

    Args:
        num_features: n, of the input ``[B, n, k]``.
        nas_space: Bounds of the groups, growing, from 0 to k.
        temperature: t; the smaller, the harder the choice.
        feature_weight: Price of each feature's mask, n numbers. None: no auxiliary loss.
        out_type: See `merge_tensor_list`.
    """

    groups: Tensor
    feature_weight: Tensor | None

    def __init__(
        self,
        num_features: int,
        nas_space: Sequence[int],
        *,
        temperature: float = 0.05,
        feature_weight: Sequence[float] | Tensor | None = None,
        out_type: OutType = "concat",
    ) -> None:
        super().__init__()
        require_positive("iRazor", num_features=num_features)
        require_choice("iRazor", "out_type", out_type, OUT_TYPES)
        bounds = list(nas_space)
        if len(bounds) < 2 or bounds[0] != 0 or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"iRazor: nas_space must grow from 0 to the embedding dim, got {bounds}")
        if not temperature > 0:
            raise ValueError(f"iRazor: temperature must be > 0, got {temperature!r}")
        self.num_features = num_features
        self.dim = bounds[-1]
        self.temperature = temperature
        self.out_type: OutType = out_type
        self.logits = nn.Parameter(torch.zeros(num_features, len(bounds)))
        sizes = [high - low for low, high in pairwise(bounds)]
        group_of_dim = torch.arange(1, len(bounds)).repeat_interleave(torch.tensor(sizes))
        self.register_buffer("groups", group_of_dim, persistent=False)
        weight = None if feature_weight is None else torch.as_tensor(feature_weight, dtype=torch.float32)
        if weight is not None:
            require_shape("iRazor", "feature_weight", weight, (num_features,))
        self.register_buffer("feature_weight", weight)

    def probabilities(self) -> Tensor:
        """Returns the share of each group, ``[n, groups]``; column 0 is the share of dropping the feature."""
        return torch.softmax(self.logits / self.temperature, dim=1)

    def masks(self) -> Tensor:
        """Returns the factor of each dim, ``[n, k]``."""
        return self.probabilities()[:, self.groups]

    def auxiliary_loss(self) -> Tensor:
        """Returns the cost of what is kept; 0 without `feature_weight`."""
        if self.feature_weight is None:
            return self.logits.new_zeros(())
        return (self.feature_weight * self.masks().sum(dim=1)).sum()

    def forward(self, features: Tensor) -> Tensor | list[Tensor]:
        """Returns the masked features, for `features` ``[B, n, k]``."""
        require_shape("iRazor", "features", features, ("B", self.num_features, self.dim))
        return merge_tensor_list(features * self.masks(), self.out_type)
