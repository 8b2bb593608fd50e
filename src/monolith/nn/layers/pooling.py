"""Many tensors into one: sums, means, maxima, concatenation, stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

OutType: TypeAlias = Literal["concat", "stack"] | None
"""How a layer returns n tensors [B, k]: concatenated [B, n k], stacked [B, n, k], or as a list."""

OUT_TYPES: tuple[str | None, ...] = ("concat", "stack", None)


def merge_tensor_list(tensors: Tensor | Sequence[Tensor], merge_type: OutType = "concat") -> Tensor | list[Tensor]:
    """Features as one tensor or as a list.

    Args:
        tensors: n tensors ``[B, k_i]``, or one tensor ``[B, n, k]``.
        merge_type: "concat" gives ``[B, sum k_i]``, "stack" ``[B, n, k]`` (all k equal), None a list of ``[B, k_i]``.
    """
    require_choice("merge_tensor_list", "merge_type", merge_type, OUT_TYPES)
    if isinstance(tensors, Tensor):
        require_shape("merge_tensor_list", "tensors", tensors, ("B", "n", "k"))
        if merge_type == "stack":
            return tensors
        return tensors.flatten(1) if merge_type == "concat" else list(tensors.unbind(dim=1))
    _require_tensors("merge_tensor_list", tensors)
    if merge_type is None:
        return list(tensors)
    return torch.cat(list(tensors), dim=1) if merge_type == "concat" else torch.stack(list(tensors), dim=1)


def stack_features(subject: str, features: Tensor | Sequence[Tensor]) -> Tensor:
    """Features as ``[B, n, k]``: a list of ``[B, k]`` is stacked, a tensor is checked; `subject` names the caller."""
    if not isinstance(features, Tensor):
        _require_equal_shapes(subject, features)
        features = torch.stack(list(features), dim=1)
    require_shape(subject, "features", features, ("B", "n", "k"))
    return features


class SumPooling(nn.Module):
    """``y = sum over i of x_i`` of a list of tensors of one shape."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the sum, shape of one tensor."""
        return _stacked("SumPooling", tensors).sum(dim=0)


class AvgPooling(nn.Module):
    """``y = (1 / n) sum over i of x_i`` of a list of n tensors of one shape."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the mean, shape of one tensor."""
        return _stacked("AvgPooling", tensors).mean(dim=0)


class MaxPooling(nn.Module):
    """``y = max over i of x_i``, element by element, of a list of tensors of one shape."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the maximum, shape of one tensor."""
        return _stacked("MaxPooling", tensors).amax(dim=0)


def _stacked(subject: str, tensors: Sequence[Tensor]) -> Tensor:
    _require_equal_shapes(subject, tensors)
    return torch.stack(list(tensors))


def _require_tensors(subject: str, tensors: Sequence[Tensor]) -> None:
    if len(tensors) == 0:
        raise ValueError(f"{subject}: needs at least one tensor, got none")


def _require_equal_shapes(subject: str, tensors: Sequence[Tensor]) -> None:
    _require_tensors(subject, tensors)
    for index, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            first, got = list(tensors[0].shape), list(tensor.shape)
            raise ValueError(f"{subject}: all tensors must have the shape of the first, {first}, got {got} at {index}")
