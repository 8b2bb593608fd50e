"""Vectors of several widths taken out of one flat buffer in one pass, with the gradient back into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def fused_gather(
    embeddings: Tensor, offsets: Sequence[Tensor], dims: Sequence[int], *, scale: float = 1.0
) -> list[Tensor]:
    """Copies, for each list of offsets, the ``dims[m]`` numbers that begin at each of them.

    `fused_reorder_by_indices` returns such offsets. The gradient of the buffer sums over the copies of each place.

    Args:
        embeddings: float [n], vectors end to end.
        offsets: Lists m of places where vectors begin, int [len_m].
        dims: Their widths, one for each list.
        scale: Factor of the gradient, on every device.

    Returns:
        Float [len_m, dims[m]] for each list.

    >>> flat = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> fused_gather(flat, [torch.tensor([3, 0]), torch.tensor([1])], [1, 2])
    [tensor([[4.],
            [1.]]), tensor([[2., 3.]])]

    Raises:
        InvalidArgumentError: Another number of lists than dims, or a vector that is not inside the buffer.
    """
    if len(offsets) != len(dims):
        raise InvalidArgumentError(f"fused_gather: {len(offsets)} lists of offsets, but {len(dims)} dims")
    if embeddings.ndim != 1:
        raise InvalidArgumentError(f"fused_gather: a flat buffer expected, got shape {tuple(embeddings.shape)}")
    places = [_places(part, dim, embeddings) for part, dim in zip(offsets, dims, strict=True)]
    if not places:
        return []
    gathered = cast("Tensor", _Gather.apply(embeddings, torch.cat(places), scale))  # type: ignore[no-untyped-call]
    parts = torch.split(gathered, [len(part) for part in places])
    return [part.reshape(-1, dim) for part, dim in zip(parts, dims, strict=True)]


def _places(offsets: Tensor, dim: int, embeddings: Tensor) -> Tensor:
    if dim < 1:
        raise InvalidArgumentError(f"fused_gather: dims must be at least 1, got {dim}")
    if offsets.numel() and not (int(offsets.min()) >= 0 and int(offsets.max()) + dim <= len(embeddings)):
        raise InvalidArgumentError(
            f"fused_gather: vectors of {dim} must lie inside the {len(embeddings)} numbers of the buffer, "
            f"got offsets from {int(offsets.min())} to {int(offsets.max())}"
        )
    return (offsets.reshape(-1, 1).to(torch.int64) + torch.arange(dim, device=offsets.device)).reshape(-1)


class _Gather(torch.autograd.Function):
    """One node for all lists."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, places: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(places)
        ctx.length, ctx.scale = len(embeddings), scale
        return embeddings.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        (gradient,) = gradients
        sums = gradient.new_zeros(ctx.length)
        return sums.index_add_(0, places, gradient * ctx.scale), None, None
