"""Gradients through a part of the model: from given gradients at some tensors back to the tensors they came from."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch import Tensor

K = TypeVar("K")


def propagate_back_gradients(
    grads_and_vars: Iterable[tuple[Tensor | None, Tensor]],
    xs: Iterable[Tensor],
    valid_var_set: Collection[Tensor] | None = None,
) -> list[Tensor | None]:
    """Returns the gradients of `xs`, given the gradients of tensors that were computed from them.

    The autograd graph stays, so the same part can be walked again.

    Args:
        grads_and_vars: Pairs of a gradient and the tensor it belongs to. A pair whose gradient is None, or whose
            tensor needs no gradient, adds nothing.
        xs: The tensors whose gradients are requested; each must require gradients.
        valid_var_set: If not empty, the only tensors that may stand in the pairs.

    Returns:
        In the order of `xs`: the sum over all pairs, None where no tensor was computed from that x.

    Raises:
        RuntimeError: a tensor of the pairs is not in `valid_var_set`.
        ValueError: an x requires no gradient.
    """
    sources = list(xs)
    for position, x in enumerate(sources):
        if not x.requires_grad:
            raise ValueError(
                f"propagate_back_gradients: x number {position} of shape {tuple(x.shape)} requires no gradient;"
                " call requires_grad_() on it before anything is computed from it"
            )
    # By identity: comparing tensors compares their elements.
    valid = {id(var) for var in valid_var_set or ()}
    combined_vars: list[Tensor] = []
    combined_grads: list[Tensor] = []
    for grad, var in grads_and_vars:
        if valid and id(var) not in valid:
            raise RuntimeError("Invalid variables in the input", var, valid_var_set)
        if grad is not None and var.requires_grad:
            combined_vars.append(var)
            combined_grads.append(grad)
    if not combined_vars or not sources:
        return [None] * len(sources)
    return list(torch.autograd.grad(combined_vars, sources, combined_grads, retain_graph=True, allow_unused=True))


def propagate_back_dict_gradients(
    grads_and_vars: Iterable[tuple[Tensor | None, Tensor]],
    x_to_key: Mapping[Tensor, K],
    valid_var_set: Collection[Tensor] | None = None,
) -> defaultdict[K, list[tuple[Tensor | None, Tensor]]]:
    """Returns the gradients of the tensors in `x_to_key`, grouped by their keys.

    Args:
        grads_and_vars: As in `propagate_back_gradients`.
        x_to_key: Tensor -> the group it belongs to.
        valid_var_set: As in `propagate_back_gradients`.

    Returns:
        Key -> pairs ``(gradient of x, x)``, in the order of `x_to_key`.
    """
    grouped: defaultdict[K, list[tuple[Tensor | None, Tensor]]] = defaultdict(list)
    dxs = propagate_back_gradients(grads_and_vars, x_to_key.keys(), valid_var_set)
    for dx, (x, key) in zip(dxs, x_to_key.items(), strict=True):
        grouped[key].append((dx, x))
    return grouped
