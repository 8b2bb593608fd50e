"""Tensors of a batch that are more than one tensor: rows of differing length, nested structures, packing.

Imports torch and nothing above `monolith.errors`. Read `ragged` first.
"""

from __future__ import annotations

from monolith.tensors._ragged_pytree import register as _register
from monolith.tensors.ragged import Ragged, fused_value_rowids

__all__ = ["Ragged", "fused_value_rowids"]

_register()
