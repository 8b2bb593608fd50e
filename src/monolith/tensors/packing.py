"""Named tensors packed end to end into one, so that one copy, one message or one queue slot carries them all.

Names are used in sorted order, so both ends agree without communication::

    {"y": [[4, 5], [6, 7]], "x": [1, 2]}      packed [1, 2, 4, 5, 6, 7]      sizes [2, 4]

Only tensors of one type can lie end to end. Mixed ones are first split by type, and packed into a list::

    [{"a": int64, "b": int64}, {"c": float32}]  ->  [packed int64, packed float32, [2, 1, sizes of a, b, c]]

Sizes are int64 on the CPU, on whatever device the tensors are. Unpacked tensors are views of the packed one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from monolith.tensors.shapes import StaticReshapeNBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
