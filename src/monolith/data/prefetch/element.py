"""Elements of a prefetch queue: structures whose tensors may be on any devices.

Most batches are plain dicts of tensors, whose containers are copied; only structures with other containers or leaves
are flattened and put together again, which costs more than all the rest of a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.data.prefetch.staging import StagedTensors
from monolith.tensors import NestedTensors, Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence


class Element:
    """A structure in its own containers, and what makes its tensors on GPUs ready for the thread that receives it."""

    __slots__ = ("_staged", "_structure")

    def __init__(self, structure: Any, gpu_tensors: Sequence[Tensor]) -> None:
        self._structure = structure
        self._staged = StagedTensors(gpu_tensors) if gpu_tensors else None

    def receive(self) -> Any:
        """Returns the structure, for use on the current streams of the thread that calls."""
        if self._staged is not None:
            self._staged.receive()
        return self._structure


def element_of(nested: Any) -> Element:
    """Returns an element of a structure, whose containers are copied: the caller may change them afterwards.

    Raises:
        ValueError: a leaf that does not travel, such as a float or an array; the text is that of `NestedTensors`.
    """
    gpu_tensors: list[Tensor] = []
    # Reading the device of each tensor costs more than all else here, and before CUDA runs none is on a GPU.
    may_use_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    try:
        structure = _copy_plain(nested, gpu_tensors if may_use_gpu else None)
    except _NotPlainError:
        flattened = NestedTensors(nested)
        tensors = flattened.get_tensors()
        structure = flattened.get_nested_result(tensors)
        gpu_tensors = [tensor for tensor in tensors if tensor.is_cuda]
    return Element(structure, gpu_tensors)


class _NotPlainError(Exception):
    """The structure has something that only `NestedTensors` supports."""


_CONSTANTS = frozenset({type(None), bool, int, str, bytes})
_CARRIED = _CONSTANTS | {Tensor}
"""Leaves that are not inspected further, unless they may be on a GPU."""


def _copy_plain(nested: Any, gpu_tensors: list[Tensor] | None) -> Any:
    """Returns the structure in containers of its own, if all types are exactly the common ones.

    Adds the tensors that are on a GPU to `gpu_tensors`, if there is such a list.
    """
    kind = type(nested)
    if kind is dict:
        copy = nested.copy()
        # Dicts of tensors and raggeds are what batches are made of: no call for each, and none at all for tensors.
        looked_at = set(map(type, nested.values()))
        if gpu_tensors is None:
            looked_at -= _CARRIED
        if not looked_at:
            return copy
        for key, item in nested.items():
            kind = type(item)
            if kind in looked_at and (kind is not Ragged or gpu_tensors is not None or type(item.values) is not Tensor):
                copy[key] = _copy_plain(item, gpu_tensors)
        return copy
    if kind in _CONSTANTS:
        return nested
    if kind is list or kind is tuple:
        return kind([_copy_plain(item, gpu_tensors) for item in nested])
    tensor = nested.values if kind is Ragged else nested
    if type(tensor) is not Tensor:
        raise _NotPlainError
    if gpu_tensors is not None and tensor.is_cuda:
        gpu_tensors += [tensor, nested.row_splits] if kind is Ragged else [tensor]
    return nested
