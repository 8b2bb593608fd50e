"""Placement of the pieces of dense weights on servers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LARGEST_PIECE_BYTES", "WeightInfo", "WeightShard", "place"]

LARGEST_PIECE_BYTES = 128 << 10
"""Weights above this size are divided, if allowed."""
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES}
"""Types that a server can keep and update, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightInfo:
    """The properties of one parameter that its placement needs.

    Raises:
        InvalidArgumentError: no server can keep it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    is_divisible: bool = True
    """Whether its pieces are updated as in the full weight."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(
                f"parameter {self.name!r}: servers keep what an optimizer moves, which is {', '.join(DTYPES)}, got"
                f" {self.dtype}; keep it as a buffer of the model"
            )

    @property
    def bytes(self) -> int:
        """Size of its values in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShard:
    """A weight, or some of its rows, on one server.

    Raises:
        InvalidArgumentError: the fields do not describe a piece.
    """

    name: str
    server: int
    shape: tuple[int, ...]
    """Shape of the piece."""
    dtype: str
    begin: int | None = None
    """Its first row in the weight; None: an undivided weight."""

    def __post_init__(self) -> None:
        is_piece = self.begin is not None
        if self.dtype not in DTYPES or min((0, *self.shape, self.begin or 0)) < 0 or (is_piece and not self.shape):
            raise InvalidArgumentError(f"placement: there is no such piece of a weight: {self!r}")

    @property
    def rows(self) -> slice:
        """Row range of a piece of a divided weight, along the first axis."""
        begin = self.begin or 0
        return slice(begin, begin + self.shape[0])

    @property
    def bytes(self) -> int:
        """Size of its values in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def order(self) -> tuple[int, bool, str]:
        """Returns the sort key on the wire: wide types first, for alignment; within a type, undivided weights first."""
        return (-self.torch_dtype.itemsize, self.begin is not None, self.name)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of its values."""
        return DTYPES[self.dtype]


def place(weights: Iterable[WeightInfo], num_ps: int, *, partition: bool = True) -> tuple[tuple[WeightShard, ...], ...]:
    """Returns the pieces of each server: largest weight first, onto the servers with the least bytes. Deterministic.

    A weight above `LARGEST_PIECE_BYTES` becomes at most `num_ps` pieces along its first axis, each on another server.
    The pieces of a server are in their order on the wire.

    Args:
        weights: In any order; names differ.
        num_ps: Number of servers.
        partition: Whether weights may be divided at all.
    """
    if num_ps < 1:
        raise InvalidArgumentError(f"placement: num_ps must be >= 1, got {num_ps}")
    loads = [0] * num_ps
    servers: list[list[WeightShard]] = [[] for _ in range(num_ps)]
    for weight in sorted(weights, key=lambda each: (-each.bytes, each.name)):
        count = _num_pieces(weight, num_ps) if partition else 1
        chosen = sorted(sorted(range(num_ps), key=lambda server: (loads[server], server))[:count])
        for piece in _divided(weight, chosen):
            servers[piece.server].append(piece)
            loads[piece.server] += piece.bytes
    return tuple(tuple(sorted(each, key=WeightShard.order)) for each in servers)


def _num_pieces(weight: WeightInfo, num_ps: int) -> int:
    if not weight.is_divisible or not weight.shape or weight.bytes <= LARGEST_PIECE_BYTES:
        return 1
    return min(num_ps, weight.shape[0], -(-weight.bytes // LARGEST_PIECE_BYTES))


def _divided(weight: WeightInfo, servers: list[int]) -> list[WeightShard]:
    if len(servers) == 1:
        return [WeightShard(name=weight.name, server=servers[0], shape=weight.shape, dtype=weight.dtype)]
    bounds = [weight.shape[0] * number // len(servers) for number in range(len(servers) + 1)]
    return [
        WeightShard(
            name=weight.name,
            server=server,
            shape=(bounds[number + 1] - bounds[number], *weight.shape[1:]),
            dtype=weight.dtype,
            begin=bounds[number],
        )
        for number, server in enumerate(servers)
    ]
