"""`DenseClient`: dense weights that servers keep and update, and a model that computes with copies of them."""

from __future__ import annotations

import secrets
import time
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from torch.optim import Optimizer

from monolith.checkpoint import DenseState, dense_state_of, large_buffer
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ps.dense import wire
from monolith.ps.dense.layout import DenseLayout, regions_of, trained_parameters
from monolith.ps.dense.optimizer_spec import group_state_keys, live_rates
from monolith.ps.dense.push import DenseWorkerSession, PendingPush, PreparedPush
from monolith.ps.dense.state_transfer import FrozenShards, StateTransfer
from monolith.ps.dense.wire import WORDS, Kind
from monolith.ps.server.push_gates import DENSE_OWNER
from monolith.tables import NOTHING_APPLIED, BatchStamp, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from torch import Tensor

    from monolith.ps.dense.wire import DenseFrames, DenseServers, FrameCall


class DenseMemory:
    """One copy of all weights of a layout, which answers are written to directly. Owned by the training thread."""

    def __init__(self, layout: DenseLayout) -> None:
        pieces = layout.pieces
        self.values: dict[str, Tensor] = {}
        """The weights by name, in the memory that answers are written to."""
        self._places: list[list[Tensor]] = []
        for name, parts in pieces.items():
            if parts[0].begin is not None:
                shape = (sum(piece.shape[0] for piece in parts), *parts[0].shape[1:])
                self.values[name] = _shaped(
                    large_buffer(sum(piece.bytes for piece in parts)), shape, parts[0].torch_dtype
                )
        for server in layout.servers:
            wholes, *divided = regions_of(server)
            flat, offset = large_buffer(sum(piece.bytes for piece in wholes)), 0
            for piece in wholes:
                raw = flat[offset : offset + piece.bytes]
                self.values[piece.name] = _shaped(raw, piece.shape, piece.torch_dtype)
                offset += piece.bytes
            rows = (self.values[piece.name][piece.rows] for (piece,) in divided)
            self._places.append([flat, *(value.view(-1).view(torch.uint8) for value in rows)])

    def places(self) -> Iterator[tuple[int, int, Any]]:
        """Yields server, region, and the memory for its bytes; skips empty regions."""
        for server, places in enumerate(self._places):
            for region, place in enumerate(places):
                if place.numel():
                    yield server, region, place.numpy()

    def copy_from(self, other: DenseMemory) -> None:
        """Copies all values of another memory with the same layout."""
        for mine, theirs in zip(self._places, other._places, strict=True):
            for place, value in zip(mine, theirs, strict=True):
                place.copy_(value)

    def show_in(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Makes the parameters show these values: as views or, on other devices and for other strides, as copies."""
        for name, parameter in parameters.items():
            value = self.values[name]
            if parameter.data_ptr() == value.data_ptr() and parameter.is_contiguous():
                continue
            if parameter.device.type == "cpu" and parameter.is_contiguous():
                parameter.data = value
            else:
                parameter.data.copy_(value)


def _shaped(raw: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return raw.view(dtype).view(shape) if raw.numel() else torch.empty(shape, dtype=dtype)


_FIRST_CLIENT_SECONDS = 5.0
"""How long other clients wait for the first client to configure all servers: it may have died in between."""


_KEEPERS: dict[int, weakref.ref[DenseClient]] = {}
"""By the id of a parameter."""


class DenseClient:
    """The dense weights of a model on servers, for one worker. Call it from the training thread.

    The first client defines the weights and their initial values; later clients must have the same layout and use the
    existing values. Clipping and decay happen here, before a push; the learning rates of the optimizers' groups are
    read at a push. Buffers, and parameters without an optimizer, stay local.

    Args:
        parameters: A model, or parameters by name. Their values are moved into memory that answers are written to
            directly.
        optimizers: One, called ``dense``, or several by name. They define the update rules of the servers; they never
            step here.
        servers: The servers, such as a `PsCluster`.
        partition: Whether weights above 128 KiB are divided among servers.
        timeout_seconds: Time limit of one call, including reconnects.

    Raises:
        FailedPreconditionError: another client has configured other weights; shows the difference.
        InvalidArgumentError: servers do not support a parameter or an optimizer; gives the reason.
    """

    def __init__(
        self,
        parameters: nn.Module | Mapping[str, nn.Parameter],
        optimizers: Optimizer | Mapping[str, Optimizer],
        servers: DenseServers,
        *,
        partition: bool = True,
        timeout_seconds: float = 120.0,
    ) -> None:
        named = dict(parameters.named_parameters()) if isinstance(parameters, nn.Module) else dict(parameters)
        self._optimizers = {"dense": optimizers} if isinstance(optimizers, Optimizer) else dict(optimizers)
        self.parameters: Mapping[str, nn.Parameter] = trained_parameters(named, self._optimizers)
        """The parameters that servers keep, by name; local copies."""
        self.layout = DenseLayout.of(named, self._optimizers, num_ps=servers.num_ps, partition=partition)
        self._servers, self._timeout = servers, timeout_seconds
        self._memory = DenseMemory(self.layout)
        self._fetched: DenseMemory | None = None
        self._fetching: list[FrameCall] | None = None
        self._read_memory: DenseMemory | None = None
        self._worker: int | None = None
        self._incarnations: list[int] = []
        self._previous: list[int] = []
        self._pushes: list[PendingPush] = []
        self.steps_of_others = -1
        """Batches of all other workers in the last answer of server 0; -1: no answer yet."""
        self._frames: DenseFrames = servers.open_frames(WORDS)
        self._transfer = StateTransfer(servers, self.layout, timeout_seconds)
        try:
            is_first = self._configure()
        except BaseException:
            self._frames.close()
            raise
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                self._memory.values[name].copy_(parameter)
        self._memory.show_in(self.parameters)
        _KEEPERS.update({id(parameter): weakref.ref(self) for parameter in self.parameters.values()})
        if is_first and any(_has_learned(optimizer) for optimizer in self._optimizers.values()):
            self.scatter(self.first_state())

    @property
    def names(self) -> frozenset[str]:
        """Names of the weights that servers keep."""
        return frozenset(self.parameters)

    def group_keys(self, optimizer: str) -> frozenset[str]:
        """Returns the keys of the state that an optimizer keeps in its groups."""
        return group_state_keys(self._optimizers[optimizer])

    # Batches

    def join(self, worker: int) -> DenseWorkerSession:
        """Begins an incarnation of a worker on every server, which rejects pushes of earlier ones from now on."""
        answers = wire.ask_all(
            self._frames, self._servers.num_ps, Kind.JOIN, lambda _: wire.encode(worker=worker), self._timeout
        )
        self._servers.require_state(DENSE_OWNER)
        self._worker = worker
        self._incarnations = [wire.field(answer, "incarnation") for answer in answers]
        stamps = [wire.decode_stamps(answer["applied"]) for answer in answers]
        self._previous = [applied[0].seq if applied else NOTHING_APPLIED for applied in stamps]
        self._pushes = []
        self.steps_of_others = wire.field(answers[0], "others")
        least = min((applied[0] for applied in stamps if applied), key=lambda stamp: stamp.seq, default=None)
        return DenseWorkerSession(
            applied=least if all(stamps) else None,
            next_seq=max(self._previous) + 1,
            applied_by_server=[applied[0] if applied else None for applied in stamps],
        )

    def pull(self) -> int:
        """Reads the current weights into the parameters; returns this worker's last batch that is in all of them."""
        self.drop_fetch()
        seen = self._received(self._begin_pull(self._memory))
        self._memory.show_in(self.parameters)
        return seen

    def fetch(self) -> None:
        """Starts to read the weights in the background; the parameters stay unchanged until `assign`."""
        if self._fetching is None:
            self._fetched = self._fetched or DenseMemory(self.layout)
            self._fetching = self._begin_pull(self._fetched)

    def assign(self) -> int | None:
        """Waits for the weights requested by `fetch`, and copies them into the parameters.

        Returns:
            This worker's last batch that is in all of them; None without a `fetch`.
        """
        calls, self._fetching = self._fetching, None
        if calls is None or self._fetched is None:
            return None
        seen = self._received(calls)
        self._memory.copy_from(self._fetched)
        self._memory.show_in(self.parameters)
        return seen

    def read_all(self) -> dict[str, Tensor]:
        """Returns the current weights by name, apart from the parameters; valid until the next call."""
        self._read_memory = self._read_memory or DenseMemory(self.layout)
        self._received(self._begin_pull(self._read_memory))
        return self._read_memory.values

    def read(self, name: str) -> Tensor:
        """Returns the current value of one weight; the parameter stays unchanged."""
        return self.read_all()[name].clone()

    def drop_fetch(self) -> None:
        """Discards the result of `fetch`; waits for the answers in flight."""
        calls, self._fetching = self._fetching, None
        for call in calls or ():
            call.wait()

    def push(self, stamp: BatchStamp, *, step: int) -> Pending[int]:
        """Sends the current gradients of the parameters, and the learning rates of the optimizers' groups.

        Args:
            stamp: Stamp of the batch; its number is above all earlier ones. Its worker joins with the first push.
            step: Global step, for update rules that need it.

        Raises:
            FailedPreconditionError: another worker has joined.
        """
        return self.send(self.prepare_push(stamp, step=step))

    def prepare_push(self, stamp: BatchStamp, *, step: int) -> PreparedPush:
        """Prepares a push without sending it, with the current gradients and rates."""
        rates = {
            name: live_rates(optimizer, self.layout.optimizers[name]) for name, optimizer in self._optimizers.items()
        }
        gradients = {name: _plain_gradient(name, parameter) for name, parameter in self.parameters.items()}
        return PreparedPush(stamp=stamp, step=step, rates=rates, gradients=gradients)

    def send(self, prepared: PreparedPush) -> Pending[int]:
        """Sends a prepared push; raises as `push` does."""
        stamp = prepared.stamp
        if self._worker is None:  # a restored state ends all incarnations
            self.join(stamp.worker)
        if stamp.worker != self._worker:
            raise FailedPreconditionError(
                f"dense weights: a batch of worker {stamp.worker}, but this client has joined as {self._worker};"
                f" call join({stamp.worker}) first"
            )
        calls = []
        for server, pieces in enumerate(self.layout.servers):
            gradients = [prepared.gradients[piece.name] for piece in pieces]
            head = wire.encode(
                stamp=wire.encode_stamps([stamp])[0],
                previous=self._previous[server],
                incarnation=self._incarnations[server],
                step=prepared.step,
                present="".join("0" if gradient is None else "1" for gradient in gradients),
                rates=prepared.rates,
            )
            parts = [
                _bytes(gradient if piece.begin is None else gradient[piece.rows])
                for piece, gradient in zip(pieces, gradients, strict=True)
                if gradient is not None and piece.bytes
            ]
            calls.append(self._frames.begin(server, Kind.PUSH, head, parts, None, self._timeout))
            self._previous[server] = max(self._previous[server], stamp.seq)
        pending = PendingPush(stamp.seq, calls, self._hear_steps)
        self._pushes = [push for push in self._pushes if not push.done()] + [pending]
        return pending

    def flush(self, *, timeout_seconds: float | None = None) -> int:
        """Waits until every push is applied; returns the number of the last one, -1 if there was none.

        Raises:
            OpError: the first error of a push in flight.
        """
        pushes, self._pushes = self._pushes, []
        for push in pushes:
            push.result(timeout_seconds)
        return min(self._previous, default=NOTHING_APPLIED)

    # State

    def held(self) -> AbstractContextManager[None]:
        """Holds pushes, with the same batches applied on all servers; see `PsCluster.held`."""
        held: Callable[[], AbstractContextManager[None]] | None = getattr(self._servers, "held", None)
        return nullcontext() if held is None else held()

    def freeze(self) -> FrozenShards:
        """Makes every server copy its current state; `FrozenShards.gather` reads the copies afterwards."""
        return self._transfer.freeze()

    def scatter(self, state: DenseState, servers: Sequence[int] | None = None) -> None:
        """Sends every server, or some of them, its part of a state; every worker has to join again.

        The parameters here are those of the servers afterwards.

        Raises:
            FailedPreconditionError: the state is of other weights, or its servers differ by a batch and were more or
                fewer than these.
        """
        self._transfer.scatter(state, servers)
        self._worker = None
        self.pull()

    def uninitialized(self) -> list[int]:
        """Returns the servers without state; configures restarted servers with the weights of this process first."""
        layout = self.layout.to_bytes()
        for server in range(self._servers.num_ps):
            if not self._is_configured(server):
                self._configure_one(server, secrets.randbits(62), layout)
        return self._servers.uninitialized(DENSE_OWNER)

    def set_initialized(self) -> None:
        """Marks the state of all servers as initialized, until their processes end."""
        self._servers.set_initialized(DENSE_OWNER)

    # Lifecycle

    def close(self) -> None:
        """Closes the connections to the servers; the parameters keep their values."""
        for parameter in self.parameters.values():
            if keeper_of(parameter) is self:
                del _KEEPERS[id(parameter)]
        self._frames.close()
        self._transfer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Implementation

    def _configure(self) -> bool:
        """Configures all servers, with the initial values of the client that configures server 0 first.

        That client, if it is alive, configures the other servers, too.

        Returns:
            Whether this client's values count.
        """
        origin = secrets.randbits(62)
        layout = self.layout.to_bytes()
        answer = self._configure_one(0, origin, layout)
        winner = wire.field(answer, "origin")
        # If that was long ago, the first client has finished: an unconfigured server was restarted.
        end = time.monotonic() + _FIRST_CLIENT_SECONDS - wire.field(answer, "age_ms") / 1e3
        for server in range(1, self._servers.num_ps):
            while winner != origin and not self._is_configured(server) and time.monotonic() < end:
                time.sleep(0.01)
            self._configure_one(server, origin, layout)
        return winner == origin

    def first_state(self) -> DenseState:
        """Returns the weights and optimizer state of this process, from before they went to servers; no stamps."""
        return dense_state_of(self.parameters, self._optimizers, group_keys=self.group_keys, clocks=())

    def _configure_one(self, server: int, origin: int, layout: bytes) -> dict[str, Any]:
        values = []
        for piece in self.layout.servers[server]:
            value = self.parameters[piece.name].detach().cpu()
            values.append(_bytes(value if piece.begin is None else value[piece.rows]))
        head = wire.encode(origin=origin, layout_bytes=len(layout))
        parts = [layout, *(value for value in values if value.size)]
        answer, _ = self._frames.begin(server, Kind.CONFIGURE, head, parts, None, self._timeout).wait()
        return wire.decode(answer)

    def _is_configured(self, server: int) -> bool:
        head = wire.encode(origin=0, layout_bytes=0)
        answer, _ = self._frames.begin(server, Kind.CONFIGURE, head, [], None, self._timeout).wait()
        return bool(wire.decode(answer)["configured"])

    def _begin_pull(self, memory: DenseMemory) -> list[FrameCall]:
        worker = -1 if self._worker is None else self._worker
        return [
            self._frames.begin(server, Kind.PULL, wire.encode_pull(worker, region), [], place, self._timeout)
            for server, region, place in memory.places()
        ]

    def _hear_steps(self, heads: Sequence[bytes]) -> None:
        self.steps_of_others = wire.field(wire.decode(heads[0]), "others")

    def _received(self, calls: Sequence[FrameCall]) -> int:
        return min((wire.decode_seen(call.wait()[0]) for call in calls), default=NOTHING_APPLIED)


def keeper_of(parameter: nn.Parameter) -> DenseClient | None:
    """Returns the open client whose servers keep a parameter; None: the parameter is local."""
    reference = _KEEPERS.get(id(parameter))
    client = None if reference is None else reference()
    # The id may be reused from a parameter that was freed.
    if client is None or all(candidate is not parameter for candidate in client.parameters.values()):
        return None
    return client


def _has_learned(optimizer: Optimizer) -> bool:
    """Returns whether the optimizer has made a step; some rules have state with a step counter from the start."""
    return any(float(values.get("step", 1)) != 0 for values in optimizer.state.values() if values)


def _plain_gradient(name: str, parameter: nn.Parameter) -> Tensor | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    if gradient.layout is not torch.strided:
        raise InvalidArgumentError(
            f"dense weights: {name!r} has a sparse gradient ({gradient.layout}), and servers take dense ones; use"
            " sparse=False in its module, or keep its rows in a table"
        )
    return gradient.detach().to(device="cpu", dtype=parameter.dtype).contiguous()


def _bytes(value: Tensor) -> np.ndarray[Any, Any]:
    """Returns the memory of a tensor; a copy if it is not contiguous."""
    memory: np.ndarray[Any, Any] = value.contiguous().view(-1).view(torch.uint8).numpy()
    return memory
