"""Conversion between the states of all shards and the state of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.checkpoint.remote_dense import DenseState
from monolith.errors import DataLossError, FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.ps.dense.layout import DenseLayout
    from monolith.ps.placement import WeightShard
    from monolith.tables.batch import BatchStamp

__all__ = ["join_shards", "split_state"]


def join_shards(
    layout: DenseLayout, shards: Sequence[Mapping[str, Any]], clocks: Sequence[Mapping[int, BatchStamp]]
) -> DenseState:
    """Joins the pieces of every weight, and of its optimizer's state.

    Raises:
        DataLossError: servers with the same batches differ in values that all pieces of a weight must share.
    """
    pieces = layout.pieces
    weights = {
        name: _joined([shards[piece.server]["weights"][name] for piece in parts]) for name, parts in pieces.items()
    }
    optimizers: dict[str, Any] = {}
    apart: list[dict[str, Any]] = [{} for _ in shards]
    for name in layout.optimizers:
        saved = [shard["optimizers"][name] for shard in shards]
        state = {}
        for weight, parts in pieces.items():
            found = [saved[piece.server]["state"].get(weight) for piece in parts]
            joined = _joined_state(parts, found)
            if joined:
                state[weight] = joined
            elif joined is None:
                for piece, own in zip(parts, found, strict=True):
                    apart[piece.server].setdefault(name, {"state": {}})["state"][weight] = own or {}
        groups = [each["groups"] for each in saved]
        if any(each != groups[0] for each in groups):
            for server, each in enumerate(groups):
                apart[server].setdefault(name, {"state": {}})["groups"] = each
        optimizers[name] = {"state": state, "groups": groups[0]}
    found_state = DenseState(
        weights=weights, optimizers=optimizers, clocks=tuple(clocks), apart=tuple(apart) if any(apart) else ()
    )
    if found_state.apart and found_state.is_level:
        raise DataLossError(f"dense weights: servers with the same batches have optimizer state that differs: {apart}")
    return found_state


def split_state(layout: DenseLayout, state: DenseState) -> list[dict[str, Any]]:
    """Returns each server's part of a state; tensors are views.

    Raises:
        FailedPreconditionError: the state is of other weights or optimizers.
    """
    if state.weights.keys() != layout.pieces.keys() or state.optimizers.keys() != layout.optimizers.keys():
        raise FailedPreconditionError(
            f"dense weights: the servers keep {sorted(layout.pieces)} with optimizers {sorted(layout.optimizers)}, got"
            f" a state of {sorted(state.weights)} with {sorted(state.optimizers)}"
        )
    found = []
    for server, pieces in enumerate(layout.servers):
        own = state.apart[server] if state.apart else {}
        optimizers = {
            name: {
                "state": {
                    piece.name: {
                        key: _part(value, piece, state.weights[piece.name].shape)
                        for key, value in saved["state"][piece.name].items()
                    }
                    for piece in pieces
                    if piece.name in saved["state"]
                }
                | own.get(name, {}).get("state", {}),
                "groups": own.get(name, {}).get("groups", saved["groups"]),
            }
            for name, saved in state.optimizers.items()
        }
        weights = {
            piece.name: _part(state.weights[piece.name], piece, state.weights[piece.name].shape) for piece in pieces
        }
        found.append({"weights": weights, "optimizers": optimizers})
    return found


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _joined_state(pieces: Sequence[WeightShard], found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Returns the state of a complete weight; None: the states of its pieces do not match."""
    states = [each or {} for each in found]
    if any(each.keys() != states[0].keys() for each in states):
        return None
    joined = {}
    for key, first in states[0].items():
        values = [each[key] for each in states]
        is_of_piece = all(
            isinstance(value, Tensor) and tuple(value.shape) == piece.shape
            for value, piece in zip(values, pieces, strict=True)
        )
        if is_of_piece:
            joined[key] = _joined(values)
        elif all(_equal(value, first) for value in values):
            joined[key] = first
        else:
            return None
    return joined


def _equal(value: Any, first: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(first, Tensor):
        return torch.equal(value, first)
    return bool(value == first)


def _part(value: Any, piece: WeightShard, whole: torch.Size) -> Any:
    """Returns the rows of a piece; a value of another shape than the weight is shared by all pieces."""
    if piece.begin is None or not isinstance(value, Tensor) or value.shape != whole:
        return value
    return value[piece.rows]
