"""Layouts: convert encoded samples, or columns of ids, to the named inputs of a graph in one call of the core.

May import the specifications of `monolith.export` and lower packages. Read `layout.py` first;
``docs/how-to/layouts.md`` shows how it is used.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
