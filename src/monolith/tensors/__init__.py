"""Tensors of a batch that are more than one tensor: rows of differing length, nested structures, packing.

Imports torch and nothing above `monolith.errors`. Read `ragged` first.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
