"""Moves the complete state of dense weights between a process and the servers: freeze and fetch, load and resume.

A state moves in chunks of one byte array: an index, then the tensors. The index is JSON, padded with spaces to
`_ALIGNMENT`; every tensor begins at a multiple of it, so that both ends can use the bytes in place.
"""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.checkpoint import DenseState, TreeEncoder, decode, large_buffer
from monolith.errors import DataLossError, FailedPreconditionError, ResourceExhaustedError
from monolith.ps.dense import wire
from monolith.ps.dense.wire import WORDS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.ps.dense.layout import DenseLayout, WeightShard
    from monolith.ps.dense.wire import DenseFrames, DenseServers
    from monolith.tables import BatchStamp

_ALIGNMENT = 64
_CHUNK_BYTES = 64 << 20
"""Bytes of a state moved in one call."""


class StateTransfer:
    """Moves states over its own connection, so that a transfer during training blocks no other call. Thread-safe."""

    def __init__(self, servers: DenseServers, layout: DenseLayout, timeout_seconds: float) -> None:
        self.layout = layout
        self._servers, self._timeout = servers, timeout_seconds
        self._opened: DenseFrames | None = None

    def freeze(self) -> FrozenShards:
        """Makes every server copy its current state; `FrozenShards.gather` reads the copies afterwards."""
        ticket = secrets.randbits(62)
        answers = self._ask_all(Kind.FREEZE, lambda _: wire.encode(ticket=ticket))
        return FrozenShards(self, ticket, answers)

    def scatter(self, state: DenseState, servers: Sequence[int] | None = None) -> None:
        """Sends every server, or some of them, its part of a state; every worker has to join again.

        Raises:
            FailedPreconditionError: the state is of other weights, or its servers differ by a batch and were more or
                fewer than these.
        """
        num_ps = self._servers.num_ps
        if not state.is_level and len(state.clocks) != num_ps:
            raise FailedPreconditionError(
                f"dense weights: a worker died between two of the {len(state.clocks)} servers of this state, and they"
                f" differ by a batch; restore it into {len(state.clocks)} servers, not {num_ps}, or take another one"
            )
        clocks: Sequence[Mapping[int, BatchStamp]] = state.clocks if not state.is_level else [state.applied] * num_ps
        ticket = secrets.randbits(62)
        packed = [pack(part) for part in split_state(self.layout, state)]
        frames, calls = self._frames(), []
        targets = range(num_ps) if servers is None else servers
        for server in targets:
            state_bytes = packed[server]
            size = state_bytes.data.numel()
            for begin in range(0, size, _CHUNK_BYTES):
                head = wire.encode(ticket=ticket, bytes=size, begin=begin)
                part = state_bytes.data[begin : begin + _CHUNK_BYTES].numpy()
                calls.append(frames.begin(server, Kind.LOAD, head, [part], None, self._timeout))
        for call in calls:
            call.wait()
        resumed = []
        for server in targets:
            head = wire.encode(
                ticket=ticket,
                index_bytes=packed[server].index_bytes,
                stamps=wire.encode_stamps(clocks[server].values()),
            )
            resumed.append(frames.begin(server, Kind.RESUME, head, [], None, self._timeout))
        for call in resumed:
            call.wait()

    def fetch(self, server: int, ticket: int, size: int) -> Tensor:
        """Reads the bytes of a frozen state of one server."""
        data, frames = room_for(size), self._frames()
        calls = [
            frames.begin(
                server,
                Kind.FETCH,
                wire.encode(ticket=ticket, begin=begin, end=min(begin + _CHUNK_BYTES, size)),
                [],
                data[begin : begin + _CHUNK_BYTES].numpy(),
                self._timeout,
            )
            for begin in range(0, size, _CHUNK_BYTES)
        ]
        for call in calls:
            call.wait()
        return data

    def release(self, ticket: int) -> None:
        """Makes servers discard a frozen state."""
        self._ask_all(Kind.RELEASE, lambda _: wire.encode(ticket=ticket))

    def close(self) -> None:
        """Closes the connection."""
        if self._opened is not None:
            self._opened.close()

    def _ask_all(self, kind: Kind, head_of: Callable[[int], bytes]) -> list[dict[str, Any]]:
        return wire.ask_all(self._frames(), self._servers.num_ps, kind, head_of, self._timeout)

    def _frames(self) -> DenseFrames:
        if self._opened is None:
            self._opened = self._servers.open_frames(WORDS)
        return self._opened


class FrozenShards:
    """A consistent state of the dense weights on all servers. A `FrozenDense` of the checkpoint."""

    def __init__(self, transfer: StateTransfer, ticket: int, answers: Sequence[Mapping[str, Any]]) -> None:
        self._transfer, self._ticket, self._answers = transfer, ticket, answers
        self._is_released = False

    def gather(self) -> DenseState:
        """Reads the state, joined as that of one process, and releases it on the servers."""
        sizes = [(wire.field(answer, "bytes"), wire.field(answer, "index_bytes")) for answer in self._answers]
        shards = [
            unpack(self._transfer.fetch(server, self._ticket, size), index_bytes)
            for server, (size, index_bytes) in enumerate(sizes)
        ]
        clocks = [{stamp.worker: stamp for stamp in wire.decode_stamps(answer["stamps"])} for answer in self._answers]
        state = join_shards(self._transfer.layout, shards, clocks)
        self.release()
        return state

    def release(self) -> None:
        """Makes the servers discard the state. Idempotent."""
        if not self._is_released:
            self._is_released = True
            self._transfer.release(self._ticket)


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
            states = [saved[piece.server]["state"].get(weight) for piece in parts]
            joined = _joined_state(parts, states)
            if joined:
                state[weight] = joined
            elif joined is None:
                for piece, own in zip(parts, states, strict=True):
                    apart[piece.server].setdefault(name, {"state": {}})["state"][weight] = own or {}
        groups = [shard["groups"] for shard in saved]
        if any(group != groups[0] for group in groups):
            for server, group in enumerate(groups):
                apart[server].setdefault(name, {"state": {}})["groups"] = group
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
    shards = []
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
        shards.append({"weights": weights, "optimizers": optimizers})
    return shards


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _joined_state(pieces: Sequence[WeightShard], saved: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Returns the state of a complete weight; None: the states of its pieces do not match."""
    states = [state or {} for state in saved]
    if any(state.keys() != states[0].keys() for state in states):
        return None
    joined = {}
    for key, first in states[0].items():
        values = [state[key] for state in states]
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


@dataclass(frozen=True, slots=True)
class PackedState:
    """Bytes of a tree, and the size of their index."""

    data: Tensor
    """uint8."""
    index_bytes: int


def pack(tree: Mapping[str, Any], spare: Tensor | None = None) -> PackedState:
    """Copies a tree; into the memory of `spare`, if that is large enough."""
    encoder = TreeEncoder()
    encoded = encoder.encode(tree, "")
    tensors, offset = [], 0
    for name, tensor in encoder.tensors.items():
        tensors.append({"name": name, "dtype": _name(tensor.dtype), "shape": list(tensor.shape), "offset": offset})
        offset += _padded(tensor.numel() * tensor.element_size())
    index = json.dumps({"tree": encoded, "tensors": tensors}, separators=(",", ":")).encode()
    index = index.ljust(_padded(len(index)))
    total = len(index) + offset
    data = spare[:total] if spare is not None and spare.numel() >= total else room_for(total)
    data[: len(index)].copy_(torch.frombuffer(bytearray(index), dtype=torch.uint8))
    for place, tensor in zip(_views(tensors, data[len(index) :]).values(), encoder.tensors.values(), strict=True):
        place.copy_(tensor)
    return PackedState(data, len(index))


def unpack(data: Tensor, index_bytes: int) -> dict[str, Any]:
    """Returns the tree; its tensors are views of `data`.

    Raises:
        DataLossError: the bytes are not a result of `pack`.
    """
    try:
        index = json.loads(bytes(data[:index_bytes].numpy()))
        tree = decode(index["tree"], _views(index["tensors"], data[index_bytes:]))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DataLossError(f"dense weights: the bytes of a state are not what was sent: {error!r}") from error
    if not isinstance(tree, dict):
        raise DataLossError(f"dense weights: expected a state, got {type(tree).__name__}")
    return tree


def room_for(size: int) -> Tensor:
    """Allocates memory for `size` bytes.

    Raises:
        ResourceExhaustedError: there is not enough memory.
    """
    try:
        return large_buffer(size)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ResourceExhaustedError(f"dense weights: no memory for a state of {size} bytes: {error}") from error


def _views(tensors: list[dict[str, Any]], flat: Tensor) -> dict[str, Tensor]:
    views = {}
    for entry in tensors:
        dtype = getattr(torch, str(entry["dtype"]), None)
        shape, offset = tuple(map(int, entry["shape"])), int(entry["offset"])
        if not isinstance(dtype, torch.dtype) or min((*shape, offset)) < 0:
            raise ValueError(f"not a tensor: {entry!r}")
        size = math.prod(shape) * dtype.itemsize
        if offset + size > flat.numel():
            raise ValueError(f"a tensor ends at byte {offset + size} of {flat.numel()}: {entry!r}")
        # torch cannot view an empty byte tensor as another type.
        raw = flat[offset : offset + size]
        views[str(entry["name"])] = raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
    return views


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT
