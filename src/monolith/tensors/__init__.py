"""Tensors of a batch that are more than one tensor: rows of differing length, nested structures, packing.

Imports torch and nothing above `monolith.errors`. Read `ragged` first.
"""

from __future__ import annotations

from monolith.tensors.nested_tensors import NestedTensors
from monolith.tensors.packing import (
    get_keyed_shape,
    get_typed_keyed_shape,
    merge_dicts,
    pack_tensors,
    pack_typed_keyed_tensors,
    split_tensors_with_type,
    unpack_packed_tensors,
    unpack_tensors,
)
from monolith.tensors.ragged import Ragged, fused_value_rowids
from monolith.tensors.shapes import StaticReshapeNBuilder, get_ndim, int_shape, maybe_squeeze_3d_tensor, static_reshape

__all__ = [
    "NestedTensors",
    "Ragged",
    "StaticReshapeNBuilder",
    "fused_value_rowids",
    "get_keyed_shape",
    "get_ndim",
    "get_typed_keyed_shape",
    "int_shape",
    "maybe_squeeze_3d_tensor",
    "merge_dicts",
    "pack_tensors",
    "pack_typed_keyed_tensors",
    "split_tensors_with_type",
    "static_reshape",
    "unpack_packed_tensors",
    "unpack_tensors",
]
