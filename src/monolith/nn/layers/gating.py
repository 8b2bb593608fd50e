"""Gates: features and hidden units multiplied by learned factors."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_last_dim, require_positive, require_shape
from monolith.nn.layers.dense import BatchNorm
from monolith.nn.layers.mlp import MLP, dense_blocks
from monolith.nn.layers.pooling import OUT_TYPES, merge_tensor_list

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.activations import Activation
    from monolith.nn.layers.mlp import MLPConfig
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


class LHUCTower(nn.Module):
    """Learning hidden unit contributions: each layer's output is scaled, unit by unit, by a small tower of its own.

    ``h_{l+1} = act_l(h_l W_l + b_l) * gate_l(g)``, where ``gate_l`` is an `MLP` that ends in ``2 sigmoid``. The gate's
    input g (often the user's or the scene's vector) may differ from the tower's.

    Reference: Swietojanski and Renals, arXiv:1601.02828.

    Args:
        input_dim: Size of the last dim of the tower's input.
        dims: Units of each layer of the tower.
        lhuc_dims: Hidden units of the gates: one list for all of them, or a list of lists, one for each layer. The last
            layer of a gate has the size of what it gates and is added here.
        lhuc_input_dim: Size of the last dim of the gates' input; `input_dim` by default.
        lhuc_options: `MLP` options of the gates where they differ from the tower's.
        options: `MLP` options of the tower; all but ``activations`` hold for the gates, too.
    """

    def __init__(
        self,
        input_dim: int,
        dims: Sequence[int],
        *,
        lhuc_dims: Sequence[int] | Sequence[Sequence[int]] = (),
        lhuc_input_dim: int | None = None,
        lhuc_options: MLPConfig | None = None,
        **options: Unpack[MLPConfig],
    ) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.lhuc_input_dim = input_dim if lhuc_input_dim is None else lhuc_input_dim
        require_positive("LHUCTower", lhuc_input_dim=self.lhuc_input_dim)
        self.blocks = dense_blocks("LHUCTower", input_dim, dims, **options)
        self.input_norm = BatchNorm(input_dim) if options.get("batch_norm", False) else nn.Identity()
        self.gates = nn.ModuleList(
            self._gate([*hidden, dim], options, lhuc_options or {})
            for hidden, dim in zip(_hidden_dims(lhuc_dims, len(dims)), dims, strict=True)
        )
        self.output_dim = dims[-1]

    def _gate(self, dims: Sequence[int], options: MLPConfig, lhuc_options: MLPConfig) -> MLP:
        activations: Sequence[Activation] = ["relu"] * (len(dims) - 1) + ["sigmoid2"]
        merged: MLPConfig = {**options, "activations": activations, **lhuc_options}
        return MLP(self.lhuc_input_dim, dims, **merged)

    def forward(self, x: Tensor, lhuc_input: Tensor | None = None) -> Tensor:
        """Returns the output ``[..., dims[-1]]`` for `x` ``[..., input_dim]``, gated by `lhuc_input` (default `x`)."""
        require_last_dim("LHUCTower", "input", x, self.input_dim)
        gate_input = x if lhuc_input is None else lhuc_input
        require_last_dim("LHUCTower", "lhuc_input", gate_input, self.lhuc_input_dim)
        h: Tensor = self.input_norm(x)
        for block, gate in zip(self.blocks, self.gates, strict=True):
            h = block(h) * gate(gate_input)
        return h


def _hidden_dims(lhuc_dims: Sequence[int] | Sequence[Sequence[int]], num_layers: int) -> list[list[int]]:
    nested = [dims for dims in lhuc_dims if not isinstance(dims, int)]
    if not nested:
        flat = [dim for dim in lhuc_dims if isinstance(dim, int)]
        return [flat] * num_layers
    if len(nested) != len(lhuc_dims) or len(nested) != num_layers:
        raise ValueError(
            f"LHUCTower: lhuc_dims must be sizes, or one list of sizes per layer ({num_layers}), got {lhuc_dims!r}"
        )
    return [list(dims) for dims in nested]


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
