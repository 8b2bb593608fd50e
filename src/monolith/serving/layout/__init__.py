"""Layouts: convert encoded samples, or columns of ids, to the named inputs of a graph in one call of the core.

May import the specifications of `monolith.export` and lower packages. Read `layout.py` first;
``docs/how-to/layouts.md`` shows how it is used.
"""

from __future__ import annotations

from monolith.serving.layout._columns import LooseColumn
from monolith.serving.layout.layout import LaidOut, Layout, SampleForm, slice_name
from monolith.serving.layout.trained import TrainedLayout

__all__ = ["LaidOut", "Layout", "LooseColumn", "SampleForm", "TrainedLayout", "slice_name"]
