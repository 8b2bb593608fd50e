"""Agreement of the clients and servers of one model: its dense weights, their placement, and their optimizers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings.row_parameters import RowAnchor
from monolith.ps.dense.optimizer_spec import OptimizerSpec, is_elementwise
from monolith.ps.placement import WeightInfo, WeightShard, place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

__all__ = ["DenseLayout", "regions_of", "trained_parameters"]

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
        names = {id(each): name for name, each in trained.items()}
        whole = {
            id(each)
            for optimizer in optimizers.values()
            if not is_elementwise(type(optimizer))
            for group in optimizer.param_groups
            for each in group["params"]
        }
        weights = [
            WeightInfo(
                name=name,
                shape=tuple(each.shape),
                dtype=str(each.dtype).removeprefix("torch."),
                is_divisible=id(each) not in whole,
            )
            for name, each in trained.items()
        ]
        specs = {name: OptimizerSpec.of(optimizer, names) for name, optimizer in sorted(optimizers.items())}
        return cls(servers=place(weights, num_ps, partition=partition), optimizers=specs)

    @property
    def pieces(self) -> dict[str, list[WeightShard]]:
        """Pieces of each weight, in the order of their rows."""
        found: dict[str, list[WeightShard]] = {}
        for server in self.servers:
            for piece in server:
                found.setdefault(piece.name, []).append(piece)
        return {name: sorted(found[name], key=lambda piece: piece.begin or 0) for name in sorted(found)}

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values by name, so that differences are readable."""
        weights = {
            name: {
                "dtype": pieces[0].dtype,
                "pieces": [{"server": each.server, "begin": each.begin, "shape": list(each.shape)} for each in pieces],
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
                for each in weight["pieces"]:
                    piece = WeightShard(
                        name=str(name),
                        server=int(each["server"]),
                        shape=tuple(map(int, each["shape"])),
                        dtype=str(weight["dtype"]),
                        begin=None if each["begin"] is None else int(each["begin"]),
                    )
                    servers[piece.server].append(piece)
            specs = {str(name): OptimizerSpec.from_dict(each) for name, each in values["optimizers"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise InvalidArgumentError(f"dense weights: not a description of a layout: {error!r}") from error
        return cls(servers=tuple(tuple(sorted(each, key=WeightShard.order)) for each in servers), optimizers=specs)


def regions_of(pieces: Sequence[WeightShard]) -> list[list[WeightShard]]:
    """Returns what one call pulls: all undivided weights of a server, which are adjacent; then each other piece."""
    return [[each for each in pieces if each.begin is None], *([each] for each in pieces if each.begin is not None)]


def trained_parameters(
    parameters: Mapping[str, nn.Parameter], optimizers: Mapping[str, Optimizer]
) -> dict[str, nn.Parameter]:
    """Returns the parameters that an optimizer updates, by name, without `RowAnchor` parameters.

    Raises:
        InvalidArgumentError: a parameter of an optimizer has no name, or belongs to two optimizers.
    """
    names = {id(each): name for name, each in parameters.items()}
    found: dict[str, nn.Parameter] = {}
    owners: dict[str, str] = {}
    for owner, optimizer in optimizers.items():
        for each in (each for group in optimizer.param_groups for each in group["params"]):
            if isinstance(each, RowAnchor):
                continue
            name = names.get(id(each))
            if name is None:
                raise InvalidArgumentError(
                    f"dense weights: optimizer {owner!r} has a parameter of shape {tuple(each.shape)} that is not among"
                    " those of the model; give every parameter it moves by name"
                )
            if owners.setdefault(name, owner) != owner:
                raise InvalidArgumentError(
                    f"dense weights: {name!r} belongs to the optimizers {owners[name]!r} and {owner!r}; a server keeps"
                    " one for each parameter"
                )
            found[name] = each
    return found
