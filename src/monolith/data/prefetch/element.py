"""What travels through a prefetch queue: a flat list of tensors, or a structure of them.

Most batches are dicts of tensors on the CPU. Those are carried as they are (`PlainStructure`); only what has tensors on
a GPU or leaves of other kinds is taken apart (`TakenApart`), which costs more than all the rest of a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from monolith.tensors import NestedTensors, Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Element", "FlatList", "PlainStructure", "TakenApart", "element_of"]


class Element(Protocol):
    """A structure with tensors in it."""

    def get_tensors(self) -> list[Tensor]:
        """Its tensors in a fixed order."""
        ...

    def gpu_places(self) -> tuple[int, ...]:
        """Which of `get_tensors` are on a GPU."""
        ...

    def rebuild(self, tensors: Sequence[Tensor] | None) -> Any:
        """The structure around these tensors, or around its own."""
        ...


class FlatList:
    """A list of tensors and nothing around them."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def get_tensors(self) -> list[Tensor]:
        """The list."""
        return self._tensors

    def gpu_places(self) -> tuple[int, ...]:
        """Which of them are on a GPU."""
        return _gpu_places(self._tensors)

    def rebuild(self, tensors: Sequence[Tensor] | None) -> list[Tensor]:
        """These as a list."""
        return list(self._tensors if tensors is None else tensors)


class TakenApart:
    """Any structure that `NestedTensors` takes."""

    __slots__ = ("_nested",)

    def __init__(self, nested: NestedTensors) -> None:
        self._nested = nested

    def get_tensors(self) -> list[Tensor]:
        """The tensors, then values and row splits of each ragged."""
        return self._nested.get_tensors()

    def gpu_places(self) -> tuple[int, ...]:
        """Which of them are on a GPU."""
        return _gpu_places(self._nested.get_tensors())

    def rebuild(self, tensors: Sequence[Tensor] | None) -> Any:
        """The structure around these."""
        return self._nested.get_nested_result(self._nested.get_tensors() if tensors is None else tensors)


class PlainStructure:
    """A structure of plain containers with nothing on a GPU, see `element_of`; nobody else may hold its containers."""

    __slots__ = ("_structure",)

    def __init__(self, structure: Any) -> None:
        self._structure = structure

    def get_tensors(self) -> list[Tensor]:
        """The tensors, then values and row splits of each ragged."""
        return NestedTensors(self._structure).get_tensors()

    def gpu_places(self) -> tuple[int, ...]:
        """None of them is on a GPU."""
        return ()

    def rebuild(self, tensors: Sequence[Tensor] | None) -> Any:
        """The structure around these."""
        if tensors is None:
            return self._structure
        return NestedTensors(self._structure).get_nested_result(tensors)


def element_of(nested: Any) -> Element:
    """An element of a structure, whose containers are copied: the caller may go on to change them.

    Raises:
        ValueError: a leaf that does not travel, such as a float or an array; the text is that of `NestedTensors`.
    """
    try:
        return PlainStructure(_copy_plain(nested, torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]
    except _NotPlainError:
        return TakenApart(NestedTensors(nested))


class _NotPlainError(Exception):
    """The structure has something that only `NestedTensors` knows."""


_CONSTANTS = frozenset({type(None), bool, int, str, bytes})


def _copy_plain(nested: Any, may_use_gpu: bool) -> Any:
    """The structure in containers of its own, if all types are exactly the common ones and no tensor is on a GPU."""
    kind = type(nested)
    if kind is dict:
        copy = nested.copy()
        for key, item in nested.items():
            # Dicts of tensors and raggeds are what batches are made of: no call for each.
            tensor = item.values if type(item) is Ragged else item
            if type(tensor) is not Tensor or (may_use_gpu and tensor.is_cuda):
                copy[key] = _copy_plain(item, may_use_gpu)
        return copy
    if kind in _CONSTANTS:
        return nested
    if kind is list or kind is tuple:
        return kind([_copy_plain(item, may_use_gpu) for item in nested])
    tensor = nested.values if kind is Ragged else nested
    if type(tensor) is not Tensor or (may_use_gpu and tensor.is_cuda):
        raise _NotPlainError
    return nested


def _gpu_places(tensors: list[Tensor]) -> tuple[int, ...]:
    return tuple(place for place, tensor in enumerate(tensors) if tensor.is_cuda)
