"""Merges requests into one call of a model, and splits its answer."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from monolith.errors import InternalError
from monolith.serving.server.columns import length_of
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from monolith.serving.server.columns import Column, Fitted

__all__ = ["likeness_of", "merge", "split"]


def likeness_of(fitted: Fitted) -> Hashable | None:
    """Returns the batching key of a request: requests with the same key can be merged. None: it cannot be merged.

    A batch in one message is not merged, nor are columns that all examples share: merging would copy them.
    """
    if "example_batch" in fitted.columns:
        return None
    if any(length_of(column) != fitted.num_examples for column in fitted.columns.values()):
        return None
    return tuple((name, _kind_of(column)) for name, column in fitted.columns.items())


def merge(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Concatenates the columns of several requests. REQUIRES: they have the same batching key."""
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def split(outputs: Mapping[str, Tensor], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
    """Splits an answer into the parts of the requests.

    Raises:
        InternalError: the number of rows of an output is not that of the examples.
    """
    total = sum(sizes)
    for name, values in outputs.items():
        if values.ndim == 0 or values.shape[0] != total:
            raise InternalError(f"output {name!r}: must have {total} rows, got the shape {list(values.shape)}")
    edges = list(accumulate(sizes, initial=0))
    return [{name: values[begin:end] for name, values in outputs.items()} for begin, end in pairwise(edges)]


def _kind_of(column: Column) -> Hashable:
    if isinstance(column, list):
        return "bytes"
    if isinstance(column, Ragged):
        return "ragged", column.flat_values.dtype
    return column.dtype, tuple(column.shape[1:])


def _join(columns: list[Column]) -> Column:
    first = columns[0]
    if isinstance(first, list):
        return [each for column in columns if isinstance(column, list) for each in column]
    if isinstance(first, Tensor):
        return torch.cat([column for column in columns if isinstance(column, Tensor)])
    return Ragged.concat([column for column in columns if isinstance(column, Ragged)])
