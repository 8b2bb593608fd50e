"""Converts the samples of a logged request to a batch for a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from monolith.data.batch import Batch
from monolith.data.columns import Dense, Floats, Ids, Ints
from monolith.data.parser import Parser
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.data.columns import Column
    from monolith.export.signature import InputSpec, Signature

__all__ = ["RequestParser"]


class RequestParser:
    """Parser of samples into batches with the columns of a signature, each of its type and shape. Thread-safe."""

    def __init__(self, signature: Signature) -> None:
        self._inputs = signature.inputs
        self._parser = Parser("example", [_column(name, spec) for name, spec in signature.inputs.items()])

    def batch(self, samples: Sequence[bytes]) -> Batch:
        """Parses samples into a batch.

        Raises:
            DataLossError: a sample cannot be parsed.
        """
        parsed = self._parser.parse(samples)
        columns = {name: _shaped(parsed[name], spec) for name, spec in self._inputs.items()}
        return Batch(columns, num_rows=len(samples))


def _column(name: str, spec: InputSpec) -> Column:
    if spec.kind == "ids":
        return Ids(name)
    is_float = getattr(torch, spec.dtype).is_floating_point
    if spec.ragged:
        return Floats(name) if is_float else Ints(name)
    return Dense(name, width=max(1, _width(spec)), dtype="float32" if is_float else "int64")


def _width(spec: InputSpec) -> int:
    return math.prod(size for size in spec.shape[1:] if size is not None)


def _shaped(values: Tensor | Ragged | list[bytes], spec: InputSpec) -> Tensor | Ragged:
    assert not isinstance(values, list)  # noqa: S101 - there is no column of texts
    wanted = getattr(torch, spec.dtype)
    if isinstance(values, Ragged):
        # Ids are lists, usually of one length, which is that of a dense column of ids.
        width = None if spec.ragged or None in spec.shape[1:] else _width(spec)
        if width is None or not bool((values.lengths() == width).all()):
            return values.with_values(values.flat_values.to(wanted))
        values = values.flat_values
    return values.to(wanted).reshape(-1, *(size if size is not None else -1 for size in spec.shape[1:]))
