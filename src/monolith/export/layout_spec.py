"""Inputs of an exported model: columns of ids with the tables of their rows, and columns of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from monolith.nn import IdLayout

PoolingName: TypeAlias = Literal["sum", "mean", "firstn", "sqrtn"]
POOLINGS: Final[tuple[PoolingName, ...]] = ("sum", "mean", "firstn", "sqrtn")
"""In the order of the core's enumeration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """A column of ids: the table of its rows, and how they become an input of the graph."""

    name: str
    """Name of the output, and of the column in requests unless `column` is set."""
    store: str
    """Name of the store in the export and in a delta log."""
    table: str
    dims: tuple[int, ...]
    """Dims of the slices of a row; their sum is the dim of the table."""
    pooling: PoolingName
    max_sequence_length: int = 0
    """Number of rows of an output of ``firstn``."""
    id_layout: IdLayout
    """How ids become keys; see `nn.Slot`."""
    number: int | None
    """Number of the slot in the keys of its table; None if the table belongs to one slot."""
    wide_index: int | None
    """Index among the table's slots with wide ids."""
    padding_id: int | None = None
    """Id that stands for no id."""
    column: str | None = None
    """Column in requests if it differs from the output: several features may read one column."""

    @property
    def source(self) -> str:
        """The column in requests."""
        return self.name if self.column is None else self.column

    @property
    def dim(self) -> int:
        """Number of floats of a row."""
        return sum(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output of one example."""
        return (self.max_sequence_length, self.dim) if self.pooling == "firstn" else (self.dim,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A column of numbers."""

    name: str
    dtype: str
    """``float32``, ``int64`` or ``bytes`` in encoded requests; columns of tensors may have any torch dtype."""
    width: int | None
    """Number of values of an example; None: variable."""
