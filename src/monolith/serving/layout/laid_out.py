"""What a layout makes of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.tensors import Ragged

__all__ = ["LaidOut", "LooseColumn"]

LooseColumn: TypeAlias = "Ragged | list[bytes]"
"""A column that is no tensor: numbers of differing length, or texts."""


class LaidOut(NamedTuple):
    """The inputs of a model for one request."""

    inputs: dict[str, Tensor]
    """Pooled rows, float32, by the name of their feature or output; then columns of numbers by theirs."""
    num_examples: int
    num_ids: int
    """That were looked up; those that all examples share count once."""
    num_found: int
    """Of them: the others have no row, and read zeros."""
    loose: dict[str, LooseColumn]
    """Columns beside them that are no tensors."""
