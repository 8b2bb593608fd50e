"""Shapes: read as plain numbers, squeezed, and changed for many tensors in one call.

A shape to reshape to is a sequence of sizes. At most one is None (or -1) and follows from the number of elements::

    [2, 2, 3]  ->  (None, 2)      is [6, 2]
    [4, 10]    ->  (None,)        is [40]
    [0, 7]     ->  (None, 0)      is [0, 0]: any size would do, 0 is taken
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError
from monolith.tensors.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence


def get_ndim(x: Any) -> int | None:
    """Returns the number of dimensions; None where it is unknown, as for a ragged or for something without a shape.

    >>> get_ndim(torch.zeros(2, 3)), get_ndim(torch.tensor(1.0)), get_ndim("text")
    (2, 0, None)
    """
    shape = None if isinstance(x, Ragged) else getattr(x, "shape", None)
    return None if shape is None else len(shape)


def int_shape(x: Any) -> tuple[int, ...] | None:
    """Returns the lengths of all dimensions; -1 for an unknown one, None where there is no such shape.

    A length is not known where it is symbolic, as while a model is exported for batches of any size.

    >>> int_shape(torch.zeros(2, 3))
    (2, 3)
    """
    shape = None if isinstance(x, Ragged) else getattr(x, "shape", None)
    if shape is None:
        return None
    lengths = [-1 if length is None or isinstance(length, torch.SymInt) else length for length in shape]
    return tuple(int(length) for length in lengths) if all(isinstance(length, int) for length in lengths) else None


def maybe_squeeze_3d_tensor(x: Ragged) -> Ragged:
    """Rows of numbers, from rows of numbers or from rows of exactly one row of numbers.

    Args:
        x: Two dims: returned as it is. Three dims, the middle one of size 1 in every row: the result is without it. The
            innermost dim may be ragged or uniform; the result is a `Ragged` of two dims either way.

    Raises:
        ValueError: no `Ragged`, another number of dims, or a row that does not hold exactly one.

    >>> maybe_squeeze_3d_tensor(Ragged.from_lists([[[0, 1]], [[2]]]))
    Ragged([[0, 1], [2]], dtype=torch.int64)
    """
    if not isinstance(x, Ragged):
        raise ValueError(f"input must be RaggedTensor, got {type(x).__name__}")  # noqa: TRY004 - the specified class
    if x.ndim == 2:
        return x
    if x.ndim != 3:
        raise ValueError(f"Unknown shape of RaggedTensor. Expected 2 or 3 dims, got {x.ndim}: {x}")
    if not torch.compiler.is_compiling() and bool((x.lengths() != 1).any()):
        row = int((x.lengths() != 1).nonzero()[0])
        raise ValueError(
            f"a RaggedTensor of 3 dims must hold one row in each row to lose its middle dim, "
            f"got {int(x.lengths()[row])} in row {row}"
        )
    if isinstance(x.values, Ragged):
        return x.values
    num_rows, width = x.values.shape
    return Ragged.from_lengths(x.values.reshape(-1), x.row_splits.new_full((num_rows,), width), validate=False)


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
