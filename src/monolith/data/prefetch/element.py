"""Elements of a prefetch queue: a flat list of tensors, or a structure of them.

Most batches are plain dicts of tensors. Those are passed unchanged (`PlainStructure`); only structures with other
containers or leaves are flattened (`TakenApart`), which costs more than all the rest of a queue.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from monolith.tensors import NestedTensors, Ragged

__all__ = ["Element", "FlatList", "PlainStructure", "TakenApart", "element_of"]


class Element(Protocol):
    """A structure with tensors in it."""

    def get_tensors(self) -> list[Tensor]:
        """Returns its tensors in a fixed order."""
        ...

    def gpu_tensors(self) -> list[Tensor]:
        """Returns the tensors that are on a GPU."""
        ...

    def structure(self) -> Any:
        """Returns the structure, in containers that are not shared."""
        ...


class FlatList:
    """A list of tensors and nothing around them."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def get_tensors(self) -> list[Tensor]:
        """Returns the list of tensors."""
        return self._tensors

    def gpu_tensors(self) -> list[Tensor]:
        """Returns the tensors that are on a GPU."""
        return [tensor for tensor in self._tensors if tensor.is_cuda]

    def structure(self) -> list[Tensor]:
        """Returns the list of tensors."""
        return self._tensors


class TakenApart:
    """Any structure that `NestedTensors` takes."""

    __slots__ = ("_nested", "_tensors")

    def __init__(self, nested: NestedTensors) -> None:
        self._nested = nested
        self._tensors = nested.get_tensors()

    def get_tensors(self) -> list[Tensor]:
        """Returns the tensors, then values and row splits of each ragged."""
        return self._tensors

    def gpu_tensors(self) -> list[Tensor]:
        """Returns the tensors that are on a GPU."""
        return [tensor for tensor in self._tensors if tensor.is_cuda]

    def structure(self) -> Any:
        """Returns the structure, put together again."""
        return self._nested.get_nested_result(self._tensors)


class PlainStructure:
    """A structure of plain containers, see `element_of`.

    Args:
        structure: The structure, in containers that are not shared.
        gpu_tensors: Those of its tensors that are on a GPU.
    """

    __slots__ = ("_gpu_tensors", "_structure")

    def __init__(self, structure: Any, gpu_tensors: list[Tensor]) -> None:
        self._structure = structure
        self._gpu_tensors = gpu_tensors

    def get_tensors(self) -> list[Tensor]:
        """Returns the tensors, then values and row splits of each ragged."""
        return NestedTensors(self._structure).get_tensors()

    def gpu_tensors(self) -> list[Tensor]:
        """Returns the tensors that are on a GPU."""
        return self._gpu_tensors

    def structure(self) -> Any:
        """Returns the structure."""
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
        return PlainStructure(_copy_plain(nested, gpu_tensors if may_use_gpu else None), gpu_tensors)
    except _NotPlainError:
        return TakenApart(NestedTensors(nested))


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
