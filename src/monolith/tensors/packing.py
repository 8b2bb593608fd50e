"""Many tensors as few: named ones packed end to end, and nested structures as one flat list.

Of packed tensors one copy, one message or one queue slot carries all.

Names are used in sorted order, so both ends agree without communication::

    {"y": [[4, 5], [6, 7]], "x": [1, 2]}      packed [1, 2, 4, 5, 6, 7]      sizes [2, 4]

Only tensors of one type can lie end to end. Mixed ones are first split by type, and packed into a list::

    [{"a": int64, "b": int64}, {"c": float32}]  ->  [packed int64, packed float32, [2, 1, sizes of a, b, c]]

Sizes are int64 on the CPU, on whatever device the tensors are. Unpacked tensors are views of the packed one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from monolith.tensors.ragged import Ragged
from monolith.tensors.shapes import StaticReshapeNBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from monolith.tensors.shapes import Shape


def pack_tensors(keyed_tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Flattens and concatenates tensors of one dtype and device, in sorted order of their names.

    Returns:
        The packed tensor, one dim, and the number of elements of each tensor, int64 on the CPU.

    >>> pack_tensors({"y": torch.tensor([[4, 5], [6, 7]]), "x": torch.tensor([1, 2])})
    (tensor([1, 2, 4, 5, 6, 7]), tensor([2, 4]))
    """
    if not keyed_tensors:
        raise ValueError("pack_tensors: at least one tensor is needed, got none")
    builder = StaticReshapeNBuilder()
    for name in sorted(keyed_tensors):
        builder.add(keyed_tensors[name], (None,))
    outputs, sizes = builder.build()
    kinds = {f"{output.dtype} on {output.device}" for output in outputs}
    if len(kinds) > 1:
        raise ValueError(
            f"pack_tensors: tensors must have one dtype and device, got {', '.join(sorted(kinds))}; "
            "see split_tensors_with_type"
        )
    return torch.cat(outputs), sizes


def unpack_tensors(keyed_shape: Mapping[str, Shape], packed: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Returns what `pack_tensors` packed, by name, in sorted order.

    Args:
        keyed_shape: Shape of each tensor (`get_keyed_shape`). One dim of each may be None: its size follows from the
            packed sizes, so the same shapes serve batches of any length.
        packed: The packed tensor and the sizes.
    """
    tensor, sizes = packed
    if tensor.ndim != 1:
        raise ValueError(f"unpack_tensors: the packed tensor must have one dim, got shape {tuple(tensor.shape)}")
    names, lengths = sorted(keyed_shape), sizes.tolist()
    if len(lengths) != len(names):
        raise ValueError(f"unpack_tensors: a size is needed for each of {len(names)} names, got {len(lengths)}")
    if min(lengths, default=0) < 0 or sum(lengths) != tensor.shape[0]:
        raise ValueError(
            f"unpack_tensors: sizes must be >= 0 and add up to the {tensor.shape[0]} packed values, got {lengths}"
        )
    builder = StaticReshapeNBuilder()
    for name, part in zip(names, torch.split(tensor, lengths), strict=True):
        builder.add(part, keyed_shape[name])
    outputs, _ = builder.build()
    return dict(zip(names, outputs, strict=True))


def get_keyed_shape(keyed_tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Returns the shape of each tensor, by name, for `unpack_tensors`."""
    return {name: list(tensor.shape) for name, tensor in keyed_tensors.items()}


def split_tensors_with_type(keyed_tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Groups the tensors by dtype, groups in sorted order of the dtype's name, so that every process agrees.

    >>> tensors = {"n": torch.tensor([1]), "x": torch.tensor([0.5]), "m": torch.tensor([2])}
    >>> [list(group) for group in split_tensors_with_type(tensors)]
    [['x'], ['n', 'm']]
    """
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in keyed_tensors.items():
        groups.setdefault(str(tensor.dtype), {})[name] = tensor
    return [groups[dtype] for dtype in sorted(groups)]


def merge_dicts(dicts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Merges dicts to one: the inverse of `split_tensors_with_type`.

    Raises:
        ValueError: a name is in two of them.
    """
    merged: dict[str, Tensor] = {}
    for part in dicts:
        if shared := merged.keys() & part.keys():
            raise ValueError(f"merge_dicts: a name may be in one dict only, got {sorted(shared)} in two")
        merged.update(part)
    return merged


def pack_typed_keyed_tensors(typed_keyed_tensors: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Packs each dict into one tensor, followed by int64 sizes: of the dicts first, then of their tensors.

    >>> pack_typed_keyed_tensors([{"a": torch.zeros(2, 2), "b": torch.ones(1)}, {"c": torch.tensor([7, 8])}])
    [tensor([0., 0., 0., 0., 1.]), tensor([7, 8]), tensor([2, 1, 4, 1, 2])]
    """
    packed = [pack_tensors(tensors) for tensors in typed_keyed_tensors]
    counts = torch.tensor([len(tensors) for tensors in typed_keyed_tensors], dtype=torch.int64)
    return [*(tensor for tensor, _ in packed), torch.cat([counts, *(sizes for _, sizes in packed)])]


def get_typed_keyed_shape(typed_keyed_tensors: Iterable[Mapping[str, Tensor]]) -> list[dict[str, list[int]]]:
    """Returns the shapes of each dict, for `unpack_packed_tensors`."""
    return [get_keyed_shape(tensors) for tensors in typed_keyed_tensors]


def unpack_packed_tensors(
    typed_keyed_shape: Sequence[Mapping[str, Shape]], packed_list: Sequence[Tensor]
) -> list[dict[str, Tensor]]:
    """Returns what `pack_typed_keyed_tensors` packed, one dict for each of the shapes; see `unpack_tensors`."""
    num_dicts = len(typed_keyed_shape)
    if len(packed_list) != num_dicts + 1:
        raise ValueError(
            f"unpack_packed_tensors: {num_dicts} packed tensors and their sizes are needed, got {len(packed_list)}"
        )
    *tensors, all_sizes = packed_list
    numbers = all_sizes.cpu()
    counts, sizes = numbers[:num_dicts].tolist(), numbers[num_dicts:]
    expected = [len(shapes) for shapes in typed_keyed_shape]
    if counts != expected or sum(expected) != sizes.shape[0]:
        raise ValueError(
            f"unpack_packed_tensors: shapes are given for {expected} tensors, "
            f"but {counts} with {sizes.shape[0]} sizes were packed"
        )
    parts = zip(typed_keyed_shape, tensors, torch.split(sizes, counts), strict=True)
    return [unpack_tensors(shapes, (tensor, part)) for shapes, tensor, part in parts]


_TENSOR, _RAGGED, _CONSTANT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Stands in the kept structure where a leaf stood: its kind, and its number among the leaves of that kind."""

    kind: int
    index: int


class NestedTensors:
    """A nested structure split into its tensors; can be rebuilt around other tensors.

    Leaves are tensors, raggeds, and constants, which stay as they are: bool, int, str, bytes, and ``nn.Parameter``,
    which belongs to the model and does not travel.

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
