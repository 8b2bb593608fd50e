"""Answers of a predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class ModelVersion(NamedTuple):
    """Version of an answer: no row and no weight that it used is older than this."""

    export: int
    """Version of the export."""
    dense: int
    """Number of the increment of dense weights in the delta log; -1: those of the export."""
    sparse: dict[str, int]
    """Part of the delta log -> its last applied increment of rows; empty: rows are those of the export."""


class Prediction(NamedTuple):
    """An answer."""

    outputs: dict[str, Tensor]
    """Outputs by name; a single prediction is called ``predictions``."""
    version: ModelVersion
    num_ids: int = 0
    """Number of ids looked up."""
    num_found: int = 0
    """Number of those ids that have a row."""
