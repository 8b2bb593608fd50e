"""Converts a structure of tensors to one flat list, and the list back to a structure.

Queues, copies to a GPU and collectives take flat lists; models take dicts of lists of tuples::

    {"ids": Ragged, "user": (age, "u1"), "step": 3}
        get_tensors()               [age, ids.values, ids.row_splits]        tensors first, then two for each Ragged
        get_nested_result(moved)    {"ids": Ragged, "user": (moved age, "u1"), "step": 3}

Three kinds of leaves: tensors (kind 0), raggeds (kind 1), and constants (kind 2), which stay as they are: bool, int,
str, bytes, and ``nn.Parameter``, which belongs to the model and does not travel.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from monolith.tensors.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TENSOR, _RAGGED, _CONSTANT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Stands in the kept structure where a leaf stood: its kind, and its number among the leaves of that kind."""

    kind: int
    index: int


class NestedTensors:
    """A nested structure split into its tensors; can be rebuilt around other tensors.

    The caller's structure is not changed, nor kept. Dicts keep their type and order, lists stay lists, tuples (named
    ones too) stay tuples, and None stays None. An object that occurs twice is listed once, and is one in the result.

    Args:
        nested: Dicts, lists and tuples of leaves, or a leaf.

    Raises:
        ValueError: a leaf of another kind, such as a float or an array, or a `Ragged` of rows of rows.

    >>> import torch
    >>> nested = NestedTensors({"a": torch.ones(2), "b": (Ragged.from_lists([[1], []]), 7)})
    >>> nested.get_tensors()
    [tensor([1., 1.]), tensor([1]), tensor([0, 1, 1])]
    >>> nested.get_nested_result([tensor * 2 for tensor in nested.get_tensors()[:2]] + [torch.tensor([0, 0, 1])])
    {'a': tensor([2., 2.]), 'b': (Ragged([[], [2]], dtype=torch.int64), 7)}
    """

    def __init__(self, nested: Any) -> None:
        self._tensors: list[Tensor] = []
        self._ragged_tensors: list[Ragged] = []
        self._other_objs: list[Any] = []
        # The lists above keep every leaf alive, so no two of them can have the same id.
        self._id_mapping: dict[int, _Leaf] = {}
        self._structure = _map_leaves(nested, self._add)

    def get_tensors(self) -> list[Tensor]:
        """Returns the tensors in the order of the structure, then values and row splits of each ragged."""
        flat = list(self._tensors)
        for ragged in self._ragged_tensors:
            flat += [ragged.flat_values, ragged.row_splits]
        return flat

    def get_nested_result(self, tensors: Sequence[Any]) -> Any:
        """Returns the structure with these in the places of `get_tensors`; raggeds are built without a check.

        Raises:
            ValueError: not as many as `get_tensors` returns.
        """
        num_dense, num_ragged = len(self._tensors), len(self._ragged_tensors)
        if len(tensors) != num_dense + 2 * num_ragged:
            raise ValueError(
                f"get_nested_result: {num_dense} tensors and 2 for each of {num_ragged} raggeds are needed, "
                f"got {len(tensors)} in all"
            )
        parts = tensors[num_dense:]
        raggeds = [
            Ragged(values, row_splits, validate=False)
            for values, row_splits in zip(parts[0::2], parts[1::2], strict=True)
        ]
        by_kind = {_TENSOR: tensors, _RAGGED: raggeds, _CONSTANT: self._other_objs}
        return _map_leaves(self._structure, lambda leaf: by_kind[leaf.kind][leaf.index])

    def _add(self, leaf: Any) -> _Leaf:
        if (known := self._id_mapping.get(id(leaf))) is not None:
            return known
        kind, leaves = self._shelf(leaf)
        leaves.append(leaf)
        place = self._id_mapping[id(leaf)] = _Leaf(kind, len(leaves) - 1)
        return place

    def _shelf(self, leaf: Any) -> tuple[int, list[Any]]:
        """Returns the kind of a leaf, and the list of leaves of that kind."""
        if isinstance(leaf, bool | int | str | bytes | nn.Parameter):  # a Parameter is a Tensor, too
            return _CONSTANT, self._other_objs
        if isinstance(leaf, Tensor):
            return _TENSOR, self._tensors
        if not isinstance(leaf, Ragged):
            raise ValueError(f"Tensor is not supported. {leaf}")  # noqa: TRY004 - the specification's class and text
        if leaf.ragged_rank != 1:
            raise ValueError("Nested tensor doesn't support nested RaggedTensor.")
        return _RAGGED, self._ragged_tensors


def _map_leaves(nested: Any, action: Callable[[Any], Any]) -> Any:
    """Returns a structure of the same shape with `action(leaf)` for each leaf."""
    if nested is None:
        return None
    if isinstance(nested, dict):
        mapped = copy.copy(nested)  # keeps its class, and what a class adds to it
        for key, item in nested.items():
            mapped[key] = _map_leaves(item, action)
        return mapped
    if isinstance(nested, list):
        return [_map_leaves(item, action) for item in nested]
    if isinstance(nested, tuple):
        items = [_map_leaves(item, action) for item in nested]
        return type(nested)(*items) if hasattr(nested, "_fields") else tuple(items)
    return action(nested)
