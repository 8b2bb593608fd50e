"""Result of a layout for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.tensors import Ragged

__all__ = ["LaidOut", "LooseColumn"]

LooseColumn: TypeAlias = "Ragged | list[bytes]"
"""A column that is not a tensor: ragged numbers, or texts."""


class LaidOut(NamedTuple):
    """The inputs of a model for one request."""

    inputs: dict[str, Tensor]
    """Pooled rows, float32, by the name of their feature or output; then columns of numbers by theirs."""
    num_examples: int
    num_ids: int
    """Number of ids looked up; ids shared by all examples count once."""
    num_found: int
    """Number of those ids that have a row; the others read zeros."""
    loose: dict[str, LooseColumn]
    """Further columns that are not tensors."""
