"""Interactions between two groups of features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice
from monolith.nn.layers.mlp import MLP
from monolith.nn.layers.pooling import stack_features

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.mlp import MLPConfig


class GroupInt(nn.Module):
    """Each left feature against each right one, left-major; also known as the field-aware product, `FFM`.

    dot: ``y_(i,j) = <l_i, r_j>``, ``[B, L R]``. multiply: ``y_(i,j) = l_i * r_j``, ``[B, L R k]``. With attention
    (multiply only), ``y_(i,j) = a_ij l_i * r_j``, where ``a_ij = MLP(l_i * r_j)`` is one number.

    Features of one group are usually summed first, so that the output stays small: L R instead of n (n - 1) / 2.

    Args:
        interaction_type: "multiply" or "dot".
        attention_units: Units of the attention's MLP, the last one 1. None: no attention.
        dim: k; needed with attention only.
        options: `MLP` options of the attention.
    """

    def __init__(
        self,
        interaction_type: Literal["multiply", "dot"] = "multiply",
        *,
        attention_units: Sequence[int] | None = None,
        dim: int | None = None,
        **options: Unpack[MLPConfig],
    ) -> None:
        super().__init__()
        require_choice("GroupInt", "interaction_type", interaction_type, ("multiply", "dot"))
        self.interaction_type = interaction_type
        self.attention: MLP | None = None
        if attention_units is None:
            return
        if interaction_type == "dot":
            raise ValueError("GroupInt: attention needs interaction_type 'multiply', got 'dot'")
        if dim is None:
            raise ValueError("GroupInt: attention needs dim, the size of a feature, got None")
        require_attention_units("GroupInt", "attention_units", attention_units)
        self.attention = MLP(dim, attention_units, **options)

    def forward(self, left: Tensor | Sequence[Tensor], right: Tensor | Sequence[Tensor]) -> Tensor:
        """Returns the interactions of `left` (L tensors ``[B, k]`` or one ``[B, L, k]``) with `right` (R of them)."""
        left_features = stack_features("GroupInt", left)
        right_features = stack_features("GroupInt", right)
        if left_features.shape[::2] != right_features.shape[::2]:
            sizes = f"{list(left_features.shape)} and {list(right_features.shape)}"
            raise ValueError(f"GroupInt: left and right must agree in batch and dim, got {sizes}")
        if self.interaction_type == "dot":
            return torch.bmm(left_features, right_features.transpose(1, 2)).flatten(1)
        products = left_features.unsqueeze(2) * right_features.unsqueeze(1)
        if self.attention is not None:
            products = products * self.attention(products)
        return products.flatten(1)


FFM = GroupInt


def require_attention_units(subject: str, name: str, units: Sequence[int]) -> None:
    """Raises if the units of an attention tower do not end in a single one."""
    if not units or units[-1] != 1:
        raise ValueError(f"{subject}: {name} must end in 1, the weight of one element, got {list(units)}")
