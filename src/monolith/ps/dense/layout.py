"""Agreement of the clients and servers of one model: its dense weights, their placement, and their optimizers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch

from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings import RowAnchor
from monolith.ps.dense.optimizer_spec import OptimizerSpec, is_elementwise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

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
    for weight in sorted(weights, key=lambda info: (-info.bytes, info.name)):
        count = _num_pieces(weight, num_ps) if partition else 1
        chosen = sorted(sorted(range(num_ps), key=lambda server: (loads[server], server))[:count])
        for piece in _divided(weight, chosen):
            servers[piece.server].append(piece)
            loads[piece.server] += piece.bytes
    return tuple(tuple(sorted(pieces, key=WeightShard.order)) for pieces in servers)


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


WIRE_VERSION = 1
"""Version of the messages between dense clients and shards; raised with every incompatible change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayout:
    """All pieces of all weights, and the optimizers. Equal at all clients and servers of a model."""

    servers: tuple[tuple[WeightShard, ...], ...]
    """The pieces of each server, in the order of their bytes on the wire."""
    optimizers: Mapping[str, OptimizerSpec]

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, nn.Parameter],
        optimizers: Mapping[str, Optimizer],
        *,
        num_ps: int,
        partition: bool = True,
    ) -> Self:
        """Returns the layout of a model.

        Args:
            parameters: Parameters by name; those without an optimizer stay local.
            optimizers: Optimizers by name.
            num_ps: Number of servers.
            partition: Whether large weights are divided.

        Raises:
            InvalidArgumentError: servers cannot keep or train a parameter; gives the reason.
        """
        trained = trained_parameters(parameters, optimizers)
        names = {id(parameter): name for name, parameter in trained.items()}
        whole = {
            id(parameter)
            for optimizer in optimizers.values()
            if not is_elementwise(type(optimizer))
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        weights = [
            WeightInfo(
                name=name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                is_divisible=id(parameter) not in whole,
            )
            for name, parameter in trained.items()
        ]
        specs = {name: OptimizerSpec.of(optimizer, names) for name, optimizer in sorted(optimizers.items())}
        return cls(servers=place(weights, num_ps, partition=partition), optimizers=specs)

    @property
    def pieces(self) -> dict[str, list[WeightShard]]:
        """Pieces of each weight, in the order of their rows."""
        by_name: dict[str, list[WeightShard]] = {}
        for server in self.servers:
            for piece in server:
                by_name.setdefault(piece.name, []).append(piece)
        return {name: sorted(by_name[name], key=lambda piece: piece.begin or 0) for name in sorted(by_name)}

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values by name, so that differences are readable."""
        weights = {
            name: {
                "dtype": pieces[0].dtype,
                "pieces": [
                    {"server": piece.server, "begin": piece.begin, "shape": list(piece.shape)} for piece in pieces
                ],
            }
            for name, pieces in self.pieces.items()
        }
        specs = {name: spec.to_dict() for name, spec in self.optimizers.items()}
        return {"wire_version": WIRE_VERSION, "num_ps": len(self.servers), "weights": weights, "optimizers": specs}

    def to_bytes(self) -> bytes:
        """Returns canonical bytes: equal layouts give equal bytes."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads the result of `to_dict`, also after JSON.

        Raises:
            InvalidArgumentError: the value is something else, or of another version.
        """
        if values.get("wire_version") != WIRE_VERSION:
            raise InvalidArgumentError(
                f"dense weights: wire_version must be {WIRE_VERSION}, got {values.get('wire_version')!r}; run the same"
                " version of the package everywhere"
            )
        try:
            servers: list[list[WeightShard]] = [[] for _ in range(int(values["num_ps"]))]
            for name, weight in values["weights"].items():
                for saved in weight["pieces"]:
                    piece = WeightShard(
                        name=str(name),
                        server=int(saved["server"]),
                        shape=tuple(map(int, saved["shape"])),
                        dtype=str(weight["dtype"]),
                        begin=None if saved["begin"] is None else int(saved["begin"]),
                    )
                    servers[piece.server].append(piece)
            specs = {str(name): OptimizerSpec.from_dict(spec) for name, spec in values["optimizers"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise InvalidArgumentError(f"dense weights: not a description of a layout: {error!r}") from error
        return cls(servers=tuple(tuple(sorted(pieces, key=WeightShard.order)) for pieces in servers), optimizers=specs)


def regions_of(pieces: Sequence[WeightShard]) -> list[list[WeightShard]]:
    """Returns what one call pulls: all undivided weights of a server, which are adjacent; then each other piece."""
    return [
        [piece for piece in pieces if piece.begin is None],
        *([piece] for piece in pieces if piece.begin is not None),
    ]


def trained_parameters(
    parameters: Mapping[str, nn.Parameter], optimizers: Mapping[str, Optimizer]
) -> dict[str, nn.Parameter]:
    """Returns the parameters that an optimizer updates, by name, without `RowAnchor` parameters.

    Raises:
        InvalidArgumentError: a parameter of an optimizer has no name, or belongs to two optimizers.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    trained: dict[str, nn.Parameter] = {}
    owners: dict[str, str] = {}
    for owner, optimizer in optimizers.items():
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if isinstance(parameter, RowAnchor):
                continue
            name = names.get(id(parameter))
            if name is None:
                raise InvalidArgumentError(
                    f"dense weights: optimizer {owner!r} has a parameter of shape {tuple(parameter.shape)} that is not"
                    " among those of the model; give every parameter it moves by name"
                )
            if owners.setdefault(name, owner) != owner:
                raise InvalidArgumentError(
                    f"dense weights: {name!r} belongs to the optimizers {owners[name]!r} and {owner!r}; a server keeps"
                    " one for each parameter"
                )
            trained[name] = parameter
    return trained
