"""The mean of the ranks' gradients of dense weights, and its options.

A rank may lack the gradient of a weight that another has, and an idle rank lacks them all: they count as zeros, and the
sum is divided by the number of ranks that are not idle. The exchange of sizes carries which rank has which gradient
(`told` -> `Agreed.sizes`), so that no further message is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import torch

from monolith import environment
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from monolith.collective.wire import Wire

Fusion: TypeAlias = Literal["none", "one", "grouped"]

_FUSIONS: Final[tuple[Fusion, ...]] = ("none", "one", "grouped")
_FUSION_VARIABLE = "MONOLITH_WITH_ALLREDUCE_FUSION"
_HALF_VARIABLE = "MONOLITH_WITH_ALLREDUCE_FP16"
_SKIP_VARIABLE = "MONOLITH_SKIP_ALLREDUCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingConfig:
    """Options for the averaging of dense gradients.

    They must be the same on all ranks, so ``str()`` of them belongs into the call that the ranks agree on.
    """

    fusion: Fusion = "grouped"
    """What travels together: every tensor by itself (`none`), all in one piece (`one`), or pieces of up to 64 MiB
    (`grouped`).
    """
    half_precision: bool = False
    """Whether floats travel as float16: half the bytes, about three digits."""
    deterministic: bool = False
    """Whether gradients are gathered and added in the order of the ranks, as one process adds those of its
    micro-batches; else in the fastest order.
    """
    skip: bool = False
    """Whether nothing is averaged, so that ranks diverge: for measuring the cost of averaging."""

    @classmethod
    def from_environment(cls, *, deterministic: bool = False) -> AveragingConfig:
        """Reads the options from the variables; `deterministic` has none.

        Raises:
            ValueError: A value that is none of those above.
        """
        said = environment.first_of(_FUSION_VARIABLE) or "grouped"
        fusion = next((name for name in _FUSIONS if name == said), None)
        if fusion is None:
            raise ValueError(f"collective: {_FUSION_VARIABLE} must be none, one or grouped, got {said!r}")
        return cls(
            fusion=fusion,
            half_precision=_is_on(_HALF_VARIABLE),
            deterministic=deterministic,
            skip=_is_on(_SKIP_VARIABLE),
        )

    def __str__(self) -> str:
        order = "averaged in the order of ranks" if self.deterministic else "averaged"
        return f"{order}, fusion {self.fusion}" + ", float16" * self.half_precision + ", skipped" * self.skip


def _is_on(variable: str) -> bool:
    value = environment.first_of(variable) or "0"
    try:
        return int(value) != 0
    except ValueError as error:
        raise ValueError(f"collective: {variable} must be an integer, 0 for off, got {value!r}") from error


_BITS = 62
"""Number of tensors per word; the sign bit is unused."""
_GROUP_BYTES = 64 << 20
"""Maximum size of a piece with fusion `grouped`; a larger tensor is a piece of its own."""


def told(gradients: Sequence[Tensor | None]) -> Tensor:
    """Returns which gradients exist, as numbers for the header of a call: int64 ``[num_told]``."""
    words = [0] * num_told(len(gradients))
    for place, gradient in enumerate(gradients):
        if gradient is not None:
            words[place // _BITS] |= 1 << (place % _BITS)
    return torch.tensor(words, dtype=torch.int64)


def num_told(num_gradients: int) -> int:
    """Returns how many numbers `told` needs for `num_gradients` weights."""
    return -(-num_gradients // _BITS)


def average_gradients(
    wire: Wire,
    gradients: Sequence[Tensor | None],
    *,
    weights: Sequence[Tensor],
    present: Tensor,
    num_active: int,
    options: AveragingConfig,
) -> list[Tensor | None]:
    """Returns the mean over active ranks; None where no rank has a gradient. Runs in a call of the wire's line.

    Args:
        wire: Wire of that line.
        gradients: Gradients of this rank, one for each weight; all None on an idle rank. They may be overwritten.
        weights: The weights, the same on every rank; for types, shapes and devices.
        present: Int64 ``[ranks, num_told]``: the result of `told` of each rank.
        num_active: Number of ranks that are not idle.
        options: The same on every rank.
    """
    if options.skip:
        return list(gradients)
    there = _unpacked(present, len(weights))
    places = [place for place in range(len(weights)) if any(ranks[place] for ranks in there)]
    averaged: list[Tensor | None] = [None] * len(weights)
    for group in _groups(places, weights, options.fusion):
        lengths = [weights[place].numel() for place in group]
        flat = _flat(group, gradients, weights)
        if options.deterministic:
            parts = [part.to(flat.dtype) for part in wire.gather(_compressed(flat, options))]
            mean = _added(parts, [[ranks[place] for place in group] for ranks in there], lengths).div_(num_active)
        else:
            sent = _compressed(flat.div_(num_active), options)  # divided first, so that no sum overflows float16
            wire.add(sent)
            mean = sent.to(flat.dtype)
        for place, piece in zip(group, mean.split_with_sizes(lengths), strict=True):
            averaged[place] = piece.view(weights[place].shape)
    return averaged


def _unpacked(present: Tensor, num_gradients: int) -> list[list[bool]]:
    if present.shape[1:] != (num_told(num_gradients),):
        raise InvalidArgumentError(
            f"collective: each rank must send {num_told(num_gradients)} numbers for {num_gradients} gradients, got "
            f"{list(present.shape)}"
        )
    unpacked: dict[tuple[int, ...], list[bool]] = {}  # most ranks have the same
    for words in map(tuple, present.tolist()):
        if words not in unpacked:
            unpacked[words] = [bool(words[place // _BITS] >> (place % _BITS) & 1) for place in range(num_gradients)]
    return [unpacked[words] for words in map(tuple, present.tolist())]


def _groups(places: Sequence[int], weights: Sequence[Tensor], fusion: Fusion) -> Iterator[list[int]]:
    """Yields the groups that travel together: of one type, on one device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for place in places:
        kinds.setdefault((weights[place].dtype, weights[place].device), []).append(place)
    for alike in kinds.values():
        group: list[int] = []
        num_bytes = 0
        for place in alike:
            size = weights[place].numel() * weights[place].element_size()
            if group and (fusion == "none" or (fusion == "grouped" and num_bytes + size > _GROUP_BYTES)):
                yield group
                group, num_bytes = [], 0
            group.append(place)
            num_bytes += size
        yield group


def _flat(group: Sequence[int], gradients: Sequence[Tensor | None], weights: Sequence[Tensor]) -> Tensor:
    """Concatenates the gradients of a group; returns a new tensor, except for a single contiguous gradient."""
    pieces = []
    for place in group:
        gradient = gradients[place]
        weight = weights[place]
        piece = torch.zeros_like(weight, memory_format=torch.contiguous_format) if gradient is None else gradient
        pieces.append(piece.detach().reshape(-1))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _compressed(flat: Tensor, options: AveragingConfig) -> Tensor:
    return flat.half() if options.half_precision and flat.is_floating_point() and flat.element_size() > 2 else flat


def _added(parts: Sequence[Tensor], there: Sequence[Sequence[bool]], lengths: list[int]) -> Tensor:
    """Adds in the order of the ranks; missing gradients are not added, since adding zero could change minus zero."""
    ranks = [rank for rank, has in enumerate(there) if any(has)]
    if all(all(there[rank]) for rank in ranks):
        total = parts[ranks[0]].clone()
        for rank in ranks[1:]:
            total += parts[rank]
        return total
    total = torch.empty_like(parts[0])
    for number, piece in enumerate(total.split_with_sizes(lengths)):
        with_it = [parts[rank].split_with_sizes(lengths)[number] for rank in ranks if there[rank][number]]
        piece.copy_(with_it[0])
        for other in with_it[1:]:
            piece.add_(other)
    return total
