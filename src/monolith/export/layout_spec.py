"""What a model that left its training code reads: columns of ids with the place of their rows, columns of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from monolith.nn.slot import IdLayout

__all__ = ["POOLINGS", "DenseSpec", "FeatureSpec", "PoolingName"]

PoolingName: TypeAlias = Literal["sum", "mean", "firstn", "sqrtn"]
POOLINGS: Final[tuple[PoolingName, ...]] = ("sum", "mean", "firstn", "sqrtn")
"""In the order of the core's numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """A column of ids: where its rows lie and how they become an input of the graph."""

    name: str
    """Of the output, and of the column in requests unless `column` says another."""
    store: str
    """Name of the store in the export and in a delta log."""
    table: str
    dims: tuple[int, ...]
    """Of the slices of a row; their sum is the dim of the table."""
    pooling: PoolingName
    max_sequence_length: int = 0
    """Rows of an output of ``firstn``."""
    id_layout: IdLayout
    """How ids become keys, as `nn.Slot` says."""
    number: int | None
    """Of the slot, in the keys of its table; None where the table is its own."""
    wide_index: int | None
    """Which of the table's slots with wide ids it is."""
    padding_id: int | None = None
    """Stands for no id."""
    column: str | None = None
    """Column in requests where it is not called as the output: one column may be read by several features."""

    @property
    def source(self) -> str:
        """The column in requests."""
        return self.name if self.column is None else self.column

    @property
    def dim(self) -> int:
        """Floats of a row."""
        return sum(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output of one example."""
        return (self.max_sequence_length, self.dim) if self.pooling == "firstn" else (self.dim,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A column of numbers."""

    name: str
    dtype: str
    """``float32``, ``int64`` or ``bytes`` in encoded requests; columns of tensors may have any that torch has."""
    width: int | None
    """Numbers of an example; None: that differs."""
