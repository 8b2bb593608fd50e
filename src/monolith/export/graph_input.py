"""What the places of a graph mean."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["GraphInput", "InputKind"]

InputKind = Literal["weight", "constant", "rows", "column", "values", "row_splits", "joined"]


class GraphInput(NamedTuple):
    """What a graph takes at one place."""

    kind: InputKind
    """``rows``: the output of a feature. ``values``, ``row_splits``: the parts of a ragged column. ``joined``: several
    features side by side; only a graph in memory has such inputs."""
    name: str
