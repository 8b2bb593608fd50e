"""Conversion of numbers between torch on the host and JAX, which has integers and floats of at most 32 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from monolith.tpu.torchax_shim import Backend

__all__ = ["array_of", "require_fitting", "tensor_of"]

_NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32}
_INT32 = torch.iinfo(torch.int32)


def array_of(tensor: Tensor, backend: Backend) -> Any:
    """Returns a host array with the values of a tensor; 64 bits become 32."""
    values = tensor.detach().cpu()
    values = values.to(_NARROWED.get(values.dtype, values.dtype)).contiguous()
    if values.dtype == torch.bfloat16:  # numpy has no bfloat16
        return backend.env.t2j_copy(values)
    return values.numpy()


def tensor_of(array: Any, backend: Backend) -> Tensor:
    """Copies an array of JAX to a new, writable tensor."""
    if array.dtype == backend.jax.numpy.bfloat16:
        copied: Tensor = backend.env.j2t_copy(array).clone()
        return copied
    return torch.from_numpy(np.array(array))


def require_fitting(name: str, tensor: Tensor) -> None:
    """Refuses integers that do not fit into 32 bits.

    Raises:
        InvalidArgumentError: names the column.
    """
    if tensor.dtype != torch.int64 or tensor.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(tensor))
    if low < _INT32.min or high > _INT32.max:
        raise InvalidArgumentError(
            f"column {name!r}: JAX computes with integers of 32 bits, got values from {low} to {high}; pass ids through"
            " slots of the embeddings, and make other numbers smaller, or floats, in input_fn"
        )
