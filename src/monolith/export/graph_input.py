"""Meaning of the inputs of a graph."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["GraphInput", "InputKind"]

InputKind = Literal["weight", "constant", "rows", "column", "values", "row_splits", "joined"]


class GraphInput(NamedTuple):
    """One input of a graph."""

    kind: InputKind
    """``rows``: the output of a feature. ``values``, ``row_splits``: the parts of a ragged column. ``joined``: several
    concatenated features; only a graph in memory has such inputs."""
    name: str
