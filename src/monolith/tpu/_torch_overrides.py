"""Corrects or refuses operations of torchax that differ from torch, so that nothing is silently wrong."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from monolith.errors import UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["batch_norm", "own_backward_refused"]


def batch_norm(  # noqa: PLR0913, PLR0917 - as torch.nn.functional has it
    input: Tensor,  # noqa: A002 - as torch.nn.functional has it
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Computes ``torch.nn.functional.batch_norm``; torchax does not update the running mean and variance."""
    dims = [dim for dim in range(input.ndim) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(input.ndim)]
    if training or running_mean is None or running_var is None:
        mean, variance = input.mean(dims), input.var(dims, unbiased=False)
        if running_mean is not None and running_var is not None:
            count = input.numel() / input.shape[1]
            running_mean.copy_((1 - momentum) * running_mean + momentum * mean.detach())
            running_var.copy_((1 - momentum) * running_var + momentum * variance.detach() * (count / max(count - 1, 1)))
    else:
        mean, variance = running_mean, running_var
    scaled = (input - mean.reshape(shape)) * torch.rsqrt(variance.reshape(shape) + eps)
    if weight is not None:
        scaled = scaled * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


@contextlib.contextmanager
def own_backward_refused(name: str) -> Iterator[None]:
    """Refuses ``torch.autograd.Function`` inside, in this thread: JAX would differentiate its forward instead.

    Args:
        name: Name of the task.
    """
    function: Any = torch.autograd.Function
    apply, thread = function.__dict__["apply"], threading.get_ident()

    def refused(cls: type) -> NoReturn:
        raise UnimplementedError(
            f"task {name}: its model uses {cls.__name__}, a torch.autograd.Function, whose own backward JAX does not"
            " see; write it with operations of torch, or train with `monolith train`"
        )

    def checked(cls: type, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread:
            refused(cls)
        return apply.__get__(None, cls)(*args, **options)  # another thread, which traces nothing

    function.apply = classmethod(checked)
    try:
        yield
    finally:
        function.apply = apply
