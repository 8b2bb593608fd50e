"""Many tensors reshaped in one call, to shapes known beforehand but for one dim each.

A shape is a sequence of sizes in which at most one is None (or -1) and follows from the number of elements::

    [2, 2, 3]  ->  (None, 2)      is [6, 2]
    [4, 10]    ->  (None,)        is [40]
    [0, 7]     ->  (None, 0)      is [0, 0]: any size would do, 0 is taken
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Shape", "StaticReshapeNBuilder", "static_reshape"]

Shape: TypeAlias = "Sequence[int | None]"
"""Sizes of the dims; None or -1, once at most, for the one that follows from the others."""


def static_reshape(
    inputs: Sequence[Tensor],
    shapes: Sequence[Shape],
    enable_parallelism: bool = True,  # noqa: ARG001 - part of the specified signature
) -> tuple[list[Tensor], Tensor]:
    """Reshapes ``inputs[i]`` to ``shapes[i]``.

    Args:
        inputs: Tensors of any types and devices.
        shapes: One for each input.
        enable_parallelism: Without effect: a reshape is a view wherever torch can make one, and costs nothing to share.

    Returns:
        The tensors, and int64 [number of inputs] with the number of elements of each, on the CPU.

    Raises:
        InvalidArgumentError: a shape with two unknown dims, of unknown rank, or for another number of elements. Nothing
            has been reshaped then.

    >>> outputs, sizes = static_reshape([torch.ones(5), torch.ones(2, 2, 3)], [(1, 5), (None, 2)])
    >>> [tuple(output.shape) for output in outputs], sizes
    ([(1, 5), (6, 2)], tensor([ 5, 12]))
    """
    if len(inputs) != len(shapes):
        raise InvalidArgumentError(f"static_reshape: each input needs a shape, got {len(inputs)} and {len(shapes)}")
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"static_reshape: Input[{index}] must be a tensor, got {type(tensor).__name__}")
    sizes = [tensor.numel() for tensor in inputs]
    targets = [_full_shape(*described) for described in zip(range(len(sizes)), sizes, shapes, strict=True)]
    outputs = [tensor.reshape(target) for tensor, target in zip(inputs, targets, strict=True)]
    return outputs, torch.tensor(sizes, dtype=torch.int64)


class StaticReshapeNBuilder:
    """Collects tensors and shapes from anywhere in a program, for one call of `static_reshape`.

    >>> builder = StaticReshapeNBuilder()
    >>> place = builder.add(torch.tensor([[1, 2], [3, 4]]), (None,))
    >>> outputs, sizes = builder.build()
    >>> outputs[place]
    tensor([1, 2, 3, 4])
    """

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.shapes: list[Shape] = []

    def add(self, input: Tensor, shape: Shape) -> int:  # noqa: A002 - the specification's name, and torch's
        """Notes a tensor and its shape; returns where the output of `build` will have it."""
        self.inputs.append(input)
        self.shapes.append(shape)
        return len(self.inputs) - 1

    def build(self) -> tuple[list[Tensor], Tensor]:
        """Returns what `static_reshape` returns for everything added so far."""
        return static_reshape(self.inputs, self.shapes)


def _full_shape(index: int, size: int, shape: Shape) -> list[int]:
    """Returns the shape with its unknown dim filled in, for input number `index` of `size` elements."""
    if shape is None:
        raise InvalidArgumentError(
            f"static_reshape: unknown rank is not allowed, got None as the shape of Input[{index}]"
        )
    dims = [-1 if dim is None else operator.index(dim) for dim in shape]
    unknown = [place for place, dim in enumerate(dims) if dim == -1]
    if len(unknown) > 1:
        raise InvalidArgumentError(
            f"Only one input size may be -1, not both {unknown[0]} and {unknown[1]}, "
            f"got shape {_text(shape)} for Input[{index}]"
        )
    if (smallest := min(dims, default=0)) < -1:
        raise InvalidArgumentError(
            f"static_reshape: sizes must be >= 0, got {smallest} in shape {_text(shape)} of Input[{index}]"
        )
    known = math.prod(dim for dim in dims if dim != -1)
    if unknown and known and size % known:
        raise InvalidArgumentError(f"Input[{index}] of size {size} cannot be reshaped as {_text(shape)}")
    if unknown:
        dims[unknown[0]] = size // known if known else 0
    if (requested := math.prod(dims)) != size:
        raise InvalidArgumentError(
            f"Input[{index}] to reshape is a tensor with {size} values, but the requested shape has {requested}"
        )
    return dims


def _text(shape: Shape) -> str:
    return f"[{', '.join('?' if dim in {None, -1} else str(dim) for dim in shape)}]"
