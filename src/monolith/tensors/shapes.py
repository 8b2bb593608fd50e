"""Shapes as numbers of plain Python."""

from __future__ import annotations

from typing import Any

import torch

from monolith.tensors.ragged import Ragged

__all__ = ["get_ndim", "int_shape"]


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
    return tuple(int(length) for length in lengths) if all(isinstance(each, int) for each in lengths) else None
