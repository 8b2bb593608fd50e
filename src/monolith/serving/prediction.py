"""What a predictor answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelVersion", "Prediction"]


class ModelVersion(NamedTuple):
    """What an answer was made with: no row and no weight in it is older than this."""

    export: int
    """Version of the export."""
    dense: int
    """Number of the increment of dense weights in the delta log; -1: they are the export's own."""
    sparse: dict[str, int]
    """Part of the delta log -> the last increment of rows that is here; empty: rows are those of the export."""


class Prediction(NamedTuple):
    """An answer."""

    outputs: dict[str, Tensor]
    """By name; a model with one prediction calls it ``predictions``."""
    version: ModelVersion
    num_ids: int = 0
    """Ids that were looked up."""
    num_found: int = 0
    """Those of them that have a row."""
