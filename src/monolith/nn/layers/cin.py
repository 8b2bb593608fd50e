"""Compressed interactions: crosses of complete embeddings, one degree per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import positive_sizes, require_positive, require_shape
from monolith.nn.layers.activations import activation_layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.nn.layers.activations import Activation


class CIN(nn.Module):
    """Compressed interaction network of xDeepFM: ``[B, sum of units]``.

    ``x^l_(h,d) = act(sum over i, j of W^l_(h,i,j) x^(l-1)_(i,d) x^0_(j,d) + b^l_h)`` for each embedding coordinate d;
    the last layer has no activation. The output concatenates, over layers, ``sum over d of x^l_(h,d)``.

    Reference: Lian et al., xDeepFM, arXiv:1803.05170.

    Args:
        num_features: n, of the input ``[B, n, k]``.
        units: Feature maps of each layer.
        activation: Of all layers but the last; none by default.
    """

    def __init__(self, num_features: int, units: Sequence[int], *, activation: Activation = None) -> None:
        super().__init__()
        require_positive("CIN", num_features=num_features)
        sizes = positive_sizes("CIN", "units", units)
        self.num_features = num_features
        self.output_dim = sum(sizes)
        self.maps = nn.ModuleList(
            nn.Linear(size_in * num_features, size_out)
            for size_in, size_out in zip((num_features, *sizes[:-1]), sizes, strict=True)
        )
        self.activations = nn.ModuleList(
            activation_layer(activation if index < len(sizes) - 1 else None) for index in range(len(sizes))
        )
        for linear in self.maps:
            nn.init.xavier_uniform_(linear.weight)  # type: ignore[arg-type]
            nn.init.zeros_(linear.bias)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        """``[B, sum of units]`` for `features` ``[B, n, k]``."""
        require_shape("CIN", "features", features, ("B", self.num_features, "k"))
        x0 = features.transpose(1, 2)
        x, sums = x0, []
        for linear, activation in zip(self.maps, self.activations, strict=True):
            x = activation(linear((x.unsqueeze(3) * x0.unsqueeze(2)).flatten(2)))
            sums.append(x.sum(dim=1))
        return torch.cat(sums, dim=1)
