"""An answered request, as the server submits it to the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["AnsweredRequest"]


class AnsweredRequest(NamedTuple):
    """A request and its answer. Must not be modified after it is submitted."""

    request_id: bytes
    model: str
    signature: str
    inputs: Mapping[str, Any]
    """Columns that the signature reads, each with ``kind`` and ``dtype``."""
    columns: Mapping[str, Tensor | Ragged | list[bytes]]
    """Columns as requested: one row per example, or one for all; or encoded samples under one of their names."""
    num_examples: int
    outputs: Mapping[str, Tensor]
    version: Any
    """Model version of the answer: ``export``, ``dense`` and ``sparse``."""

    @property
    def is_encoded(self) -> bool:
        """Whether it has encoded samples instead of columns."""
        return len(self.columns) == 1 and next(iter(self.columns)) not in self.inputs

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return sum(map(_size_of, self.columns.values())) + sum(map(_size_of, self.outputs.values()))


def _size_of(column: Tensor | Ragged | list[bytes]) -> int:
    if isinstance(column, list):
        return sum(map(len, column)) + 64 * len(column)
    if isinstance(column, Ragged):
        return int(column.flat_values.nbytes + column.row_splits.nbytes)
    return int(column.nbytes)
