"""Clipping of gradients by their lengths (2-norms), each accurate at any size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


_SMALL = 4096
"""Up to this size, tensors of one shape are measured together: stacking them costs less than the calls it saves."""
_LARGE = 1 << 16
_PART = 4096


def lengths(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the length of each tensor, [N], in float64 for float64 and in float32 for all others.

    All tensors have one device and one dtype, and there is at least one.
    """
    together: dict[Hashable, list[int]] = {}
    for position, tensor in enumerate(tensors):
        together.setdefault(tensor.shape if tensor.numel() <= _SMALL else position, []).append(position)
    measured = [_lengths_of_one_shape([tensors[position] for position in own]) for own in together.values()]
    order = [position for own in together.values() for position in own]
    result = torch.cat(measured)
    if order != sorted(order):
        result = result[torch.tensor(order).argsort().to(result.device)]
    return result


def _lengths_of_one_shape(tensors: list[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return _length(tensors[0]).reshape(1)
    rows = torch.stack(tensors).reshape(len(tensors), tensors[0].numel())
    result: Tensor = torch.linalg.vector_norm(_widened(rows), dim=1)
    return result


def _length(tensor: Tensor) -> Tensor:
    """Returns the length, by parts: torch's float32 norm on the CPU is wrong by 0.3 % at 20 million elements."""
    tensor = _widened(tensor)
    while tensor.numel() > _LARGE and tensor.device.type == "cpu":
        flat = tensor.reshape(-1)
        whole = flat.numel() // _PART * _PART
        parts = torch.linalg.vector_norm(flat[:whole].view(-1, _PART), dim=1)
        tensor = torch.cat([parts, flat[whole:]])
    length: Tensor = torch.linalg.vector_norm(tensor)
    return length


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in {torch.float32, torch.float64} else tensor.to(torch.float32)


def global_norm(t_list: Sequence[Tensor | None]) -> Tensor:
    """Returns the length of all tensors taken as one vector: ``sqrt(sum of squares)``.

    It is computed in float64 if any tensor is float64, else in float32; a sum of squares beyond that type's range
    counts as infinite.

    Args:
        t_list: A list; None in it stands for a missing gradient. The tensors may be on several devices.

    Returns:
        0-dimensional, on the device of the first tensor; 0 for a list without tensors.

    Raises:
        TypeError: `t_list` is no list, or holds something other than dense floating-point tensors and None.
    """
    tensors = _tensors_of(t_list)
    if not tensors:
        return torch.zeros(())
    norms = [lengths(batch) for batch in _by_kind(tensors)]
    dtype = torch.float64 if any(norm.dtype is torch.float64 for norm in norms) else torch.float32
    return lengths([torch.cat([norm.to(tensors[0].device, dtype) for norm in norms])])[0]


def clip_by_global_norm(
    t_list: Sequence[Tensor | None], clip_norm: float, use_norm: Tensor | float | None = None
) -> tuple[list[Tensor | None], Tensor]:
    """Scales all tensors by the same factor, so that their common length is at most `clip_norm`.

    The inputs are never changed. Tensors within the limit may be returned unchanged, in the same memory. If the norm is
    infinite or NaN, every element of the result is NaN.

    Args:
        t_list: A list of tensors; None in it stays None.
        clip_norm: The limit, > 0.
        use_norm: The norm, if it is known already; it need not be the norm of `t_list`.

    Returns:
        The scaled tensors in their order, and the norm from before (0-dimensional; 0 for an empty list).

    Raises:
        TypeError: as `global_norm`.
        ValueError: `clip_norm` is not positive.
    """
    tensors = _tensors_of(t_list)
    limit = _checked_limit("clip_norm", clip_norm)
    norm = global_norm(t_list) if use_norm is None else torch.as_tensor(use_norm)
    # On the host the comparison is free; elsewhere it would wait for the device, and a factor of 1 changes no bit.
    if norm.device.type == "cpu" and math.isfinite(norm) and norm <= limit:
        return list(t_list), norm
    scaled = iter(_scaled(tensors, clip_factor(norm, limit)))
    return [None if tensor is None else next(scaled) for tensor in t_list], norm


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """Returns the factor that reduces a length of `norm` to at most `limit`: 1 or less, NaN if `norm` is not finite."""
    factor = torch.where(norm > limit, limit / norm, 1.0)
    return torch.where(torch.isfinite(norm), factor, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointClip:
    """One norm over dense and row gradients, and the factor of each side. All 0-dimensional."""

    norm: Tensor
    """The common length before clipping."""
    dense_factor: Tensor
    """For the dense gradients; `scale_dense_` applies it."""
    row_factor: Tensor
    """For the row gradients: ``float(...)`` of it is the `scale` of a store's `Update`."""

    def scale_dense_(self, dense: Iterable[Tensor | None]) -> None:
        """Multiplies the dense gradients in place; skips None."""
        with torch.no_grad():
            tensors = [tensor for tensor in dense if tensor is not None]
            for tensor, scaled in zip(tensors, _scaled(tensors, self.dense_factor), strict=True):
                tensor.copy_(scaled)


def joint_clip(
    dense: Iterable[Tensor | None],
    rows: Iterable[Tensor | None],
    *,
    clip_norm: float,
    row_clip_norm: float | None = None,
) -> JointClip:
    """Returns the factors that clip dense and row gradients by ONE norm over both. Changes nothing by itself.

    Args:
        dense: Gradients of the dense parameters.
        rows: Gradients of the rows: one value per looked-up row and dim, as they are passed to the store.
        clip_norm: The limit of the common norm for the dense gradients, > 0.
        row_clip_norm: The limit for the row gradients, >= 0; `clip_norm` by default. A warm-up of it is a schedule:
            ``row_clip_norm=linear_warmup(1000.0, 2000)(step)``.

    Returns:
        Norm and factors; NaN factors if the norm is not finite.
    """
    limit = _checked_limit("clip_norm", clip_norm)
    row_limit = limit if row_clip_norm is None else _checked_limit("row_clip_norm", row_clip_norm, zero=True)
    norm = global_norm([*dense, *rows])
    return JointClip(norm=norm, dense_factor=clip_factor(norm, limit), row_factor=clip_factor(norm, row_limit))


def _tensors_of(t_list: Sequence[Tensor | None]) -> list[Tensor]:
    if not isinstance(t_list, list):
        raise TypeError("t_list should be a list")
    for position, tensor in enumerate(t_list):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"t_list: expected tensors and None, got {type(tensor).__name__} at position {position}")
        if tensor.layout is not torch.strided or not tensor.is_floating_point():
            raise TypeError(
                f"t_list: expected dense floating-point tensors, got {tensor.layout} of {tensor.dtype} at position"
                f" {position}; of a sparse gradient pass coalesce().values()"
            )
    return [tensor for tensor in t_list if tensor is not None]


def _checked_limit(name: str, value: float, *, zero: bool = False) -> float:
    limit = float(value)
    if not (limit > 0 or (zero and limit == 0)):
        raise ValueError(f"{name} must be {'>= 0' if zero else '> 0'}, got {value!r}")
    return limit


def _by_kind(tensors: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return kinds.values()


def _scaled(tensors: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """Returns new tensors; the factor keeps its precision where the tensors have less."""
    factors = {device: factor.to(device) for device in {tensor.device for tensor in tensors}}
    return [_product(tensor, factors[tensor.device]) for tensor in tensors]


def _product(tensor: Tensor, factor: Tensor) -> Tensor:
    if tensor.dtype in {torch.float32, torch.float64}:
        return tensor * factor
    return (tensor.to(torch.float32) * factor).to(tensor.dtype)
