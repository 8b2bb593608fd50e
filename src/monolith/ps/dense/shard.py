"""`DenseShard`: the dense weights of one server, as served to clients. `wire.py` defines the messages."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError
from monolith.ps.dense import wire
from monolith.ps.dense.layout import DenseLayout
from monolith.ps.dense.optimizer_spec import import_modules
from monolith.ps.dense.push import PushClock
from monolith.ps.dense.state_transfer import PackedState, pack, room_for, unpack
from monolith.ps.dense.wire import Kind
from monolith.ps.recovery.recording import NoRecording
from monolith.ps.server.hosted_weights import HostedWeights
from monolith.ps.server.push_gates import DENSE_OWNER, OwnerPushGate
from monolith.tables import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from monolith.ps.recovery.recording import Recording
    from monolith.tables import BatchStamp

_log = logging.getLogger(__name__)

Answer: TypeAlias = "tuple[bytes, Sequence[Any]]"


class DensePushGate(OwnerPushGate, Protocol):
    """Gate for pushes, which a client holds for a cut; implemented by `_core.PushGate`."""

    def enter(self, worker: int, seq: int, applied: int) -> bool:
        """Returns whether a push may pass now; if so, call `leave` afterwards."""

    def leave(self) -> None:
        """Marks the push as done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedDense:
    """A consistent copy of the dense weights of a server."""

    layout: Mapping[str, Any]
    origin: int
    packed: PackedState
    stamps: Mapping[int, BatchStamp]
    version: int
    """Changes with every push."""


class DenseShard:
    """The dense weights of one server: the first client configures them, all clients pull and push. A frame handler.

    Thread-safe; calls on the weights are serialized. A push is applied once, however often it is sent.

    Args:
        index: Index of this server.
        num_ps: Number of servers.
        gate: Gate for pushes.
        modules: Modules with optimizers, in addition to ``torch.optim`` and ``monolith.optim``; imported now.
    """

    def __init__(self, index: int, num_ps: int, *, gate: DensePushGate, modules: Sequence[str] = ()) -> None:
        import_modules(modules)
        self.gate = gate
        self._index, self._num_ps, self._modules = index, num_ps, tuple(modules)
        self._lock = threading.Lock()
        # The lock guards the fields below.
        self._weights: HostedWeights | None = None
        self._layout: dict[str, Any] = {}
        self._origin = 0
        self._begun_at = time.monotonic()
        self._clock = PushClock()
        self._failure: str | None = None
        self._frozen: tuple[int, PackedState, list[list[Any]]] | None = None
        self._spare: Tensor | None = None
        self._arriving: tuple[int, Tensor] | None = None
        self._resumed_by: int | None = None
        self._version = 0
        self._spare_capture: Tensor | None = None
        self.is_unclaimed = False
        """Recovered, and no client has configured it yet."""
        self.on_resumed: Callable[[], None] = lambda: None
        """Called after a resume from a saved state."""
        self.recording: Recording = NoRecording()
        """Receives state changes for the recovery record."""
        self._calls: Mapping[int, Callable[[bytes, memoryview], Answer | None]] = {
            Kind.CONFIGURE: self._configure,
            Kind.JOIN: self._join,
            Kind.PULL: self._pull,
            Kind.PUSH: self._push,
            Kind.FREEZE: self._freeze,
            Kind.FETCH: self._fetch,
            Kind.RELEASE: self._release,
            Kind.LOAD: self._load,
            Kind.RESUME: self._resume,
        }

    # Server side

    def capture(self, known_version: int) -> CapturedDense | None:
        """Returns a copy of the state, valid until the next capture; None: no valid one newer than `known_version`."""
        with self._lock:
            if self._weights is None or self._failure is not None or self._version == known_version:
                return None
            packed = pack(self._weights.state(), self._spare_capture)
            self._spare_capture = packed.data
            return CapturedDense(
                layout=self._layout,
                origin=self._origin,
                packed=packed,
                stamps=self._clock.stamps,
                version=self._version,
            )

    def recover(self, captured: CapturedDense) -> None:
        """Restores a captured state. Call it before the server accepts clients.

        Raises:
            OpError: the state is of another server, or needs optimizers that are not available.
        """
        with self._lock:
            weights = self._build(captured.layout, None)
            weights.load(unpack(captured.packed.data, captured.packed.index_bytes))
            self._clock.resume(captured.stamps.values())
            self._weights, self._layout, self._origin = weights, dict(captured.layout), captured.origin
            self._version = captured.version
            self.is_unclaimed = True

    def applied(self) -> dict[int, int]:
        """Returns worker -> number of its last applied batch."""
        with self._lock:
            return {worker: stamp.seq for worker, stamp in self._clock.stamps.items()}

    def steps(self) -> int:
        """Returns the number of applied batches of all workers."""
        with self._lock:
            return self._clock.steps

    # Client side

    def greet(self, words: bytes, peer: str) -> bytes:
        """Accepts a connection.

        Raises:
            InvalidArgumentError: the handshake is for another purpose.
        """
        if words != wire.WORDS:
            raise InvalidArgumentError(f"dense weights: {peer} must greet with {wire.WORDS!r}, got {words[:80]!r}")
        return b""

    def call(self, words: bytes, kind: int, head: bytes, body: memoryview) -> Answer | None:  # noqa: ARG002 - interface
        """Answers a call; None: not now, the server retries it when the gate has opened.

        Raises:
            OpError: the call is invalid or failed.
        """
        answer = self._calls.get(kind)
        if answer is None:
            raise InvalidArgumentError(f"dense weights: there is no call of kind {kind}; expected {list(self._calls)}")
        try:
            if kind == Kind.RESUME:
                return self._replaced(head, body)
            with self._lock:
                return answer(head, body)
        except OpError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InvalidArgumentError(
                f"dense weights: a call of kind {Kind(kind).name} that cannot be: {error!r}"
            ) from error

    def _replaced(self, head: bytes, body: memoryview) -> Answer:
        """Resumes after invalidating the recorded weights. Lock order: the record before the weights."""
        with self.recording.replacing(DENSE_OWNER), self._lock:
            answer = self._resume(head, body)
        self.recording.resumed(DENSE_OWNER)
        self.on_resumed()
        return answer

    def _configure(self, head: bytes, body: memoryview) -> Answer:
        values = wire.decode(head)
        size = wire.field(values, "layout_bytes")
        if size:
            layout = json.loads(bytes(body[:size]))
            if self.is_unclaimed and layout != self._layout:
                _log.warning("dense weights: the recovered weights belong to another model: dropped")
                self._weights, self._clock = None, PushClock()
            self.is_unclaimed = False
            if self._weights is None:
                self._begin(layout, body[size:])
                self._origin = wire.field(values, "origin")
            elif layout != self._layout:
                raise FailedPreconditionError(
                    "dense weights: another client has configured them, and the layout of this one differs:"
                    f" {differences(self._layout, layout)}; build the same model and optimizers everywhere, or start"
                    " new servers"
                )
        age_ms = round(1e3 * (time.monotonic() - self._begun_at))
        return wire.encode(configured=self._weights is not None, origin=self._origin, age_ms=age_ms), ()

    def _begin(self, layout: dict[str, Any], values: memoryview) -> None:
        self._weights = self._build(layout, values)
        self._layout = layout
        self._version += 1
        self._begun_at = time.monotonic()

    def _build(self, description: Mapping[str, Any], values: memoryview | None) -> HostedWeights:
        """Builds weights with these initial values; None: zeros."""
        layout = DenseLayout.from_dict(dict(description))
        if len(layout.servers) != self._num_ps:
            raise FailedPreconditionError(
                f"dense weights: this is one of {self._num_ps} servers, got a layout for {len(layout.servers)}; give"
                " clients the addresses of all servers"
            )
        if values is None:
            values = memoryview(bytes(sum(piece.bytes for piece in layout.servers[self._index])))
        return HostedWeights(layout, self._index, values, modules=self._modules)

    def _join(self, head: bytes, body: memoryview) -> Answer:  # noqa: ARG002
        self._require_weights()
        worker = wire.field(wire.decode(head), "worker")
        incarnation, last = self._clock.join(worker)
        applied = wire.encode_stamps([] if last is None else [last])
        others = self._clock.steps_of_others(worker)
        return wire.encode(incarnation=incarnation, applied=applied, others=others), ()

    def _pull(self, head: bytes, body: memoryview) -> Answer:  # noqa: ARG002
        worker, region = wire.decode_pull(head)
        weights = self._require_weights()
        if not 0 <= region < weights.num_regions:
            raise InvalidArgumentError(
                f"dense weights: this server has {weights.num_regions} regions, got number {region}"
            )
        return wire.encode_seen(self._clock.last_applied(worker)), (weights.copy_of(region),)

    def _push(self, head: bytes, body: memoryview) -> Answer | None:
        values = wire.decode(head)
        (stamp,) = wire.decode_stamps([values["stamp"]])
        weights = self._require_weights()
        last = self._clock.last_applied(stamp.worker)
        is_new = self._clock.is_new(
            stamp, previous=wire.field(values, "previous"), incarnation=wire.field(values, "incarnation")
        )
        if not is_new:
            return self._pushed(stamp.worker, is_new=False)
        present, step = [flag == "1" for flag in values["present"]], wire.field(values, "step")
        weights.check(present, values["rates"], body)
        if not self.gate.enter(stamp.worker, stamp.seq, last):
            return None
        try:
            weights.apply(present, values["rates"], body, step=step)
            self._clock.record(stamp)
            self._version += 1
        except BaseException as error:
            # Some weights may have changed already: a retry would apply the push twice, so later calls must fail.
            self._failure = f"batch {stamp.seq} of worker {stamp.worker}: {error!r}"
            raise
        finally:
            self.gate.leave()
        return self._pushed(stamp.worker, is_new=True)

    def _pushed(self, worker: int, *, is_new: bool) -> Answer:
        last, others = self._clock.last_applied(worker), self._clock.steps_of_others(worker)
        return wire.encode(is_new=is_new, applied=last, others=others), ()

    def _freeze(self, head: bytes, body: memoryview) -> Answer:  # noqa: ARG002
        ticket = wire.field(wire.decode(head), "ticket")
        weights = self._require_weights()
        if self._frozen is None or self._frozen[0] != ticket:
            # Bytes of a state that was not released may still be in flight: do not reuse its memory.
            spare, self._spare = self._spare, None
            stamps = wire.encode_stamps(self._clock.stamps.values())
            self._frozen = (ticket, pack(weights.state(), spare), stamps)
        _, packed, stamps = self._frozen
        return wire.encode(bytes=packed.data.numel(), index_bytes=packed.index_bytes, stamps=stamps), ()

    def _fetch(self, head: bytes, body: memoryview) -> Answer:  # noqa: ARG002
        values = wire.decode(head)
        if self._frozen is None or self._frozen[0] != wire.field(values, "ticket"):
            raise FailedPreconditionError(
                "dense weights: the frozen state was released, or a later one took its place; freeze again"
            )
        data, begin, end = self._frozen[1].data, wire.field(values, "begin"), wire.field(values, "end")
        if not 0 <= begin <= end <= data.numel():
            raise InvalidArgumentError(
                f"dense weights: the range must be within the {data.numel()} bytes of the frozen state, got {begin} to"
                f" {end}"
            )
        return b"", (data[begin:end].numpy(),)

    def _release(self, head: bytes, body: memoryview) -> Answer:  # noqa: ARG002
        if self._frozen is not None and self._frozen[0] == wire.field(wire.decode(head), "ticket"):
            self._spare, self._frozen = self._frozen[1].data, None
        return b"", ()

    def _load(self, head: bytes, body: memoryview) -> Answer:
        values = wire.decode(head)
        ticket, size, begin = (wire.field(values, name) for name in ("ticket", "bytes", "begin"))
        self._require_layout()
        if not 0 <= begin <= begin + body.nbytes <= size:
            raise InvalidArgumentError(
                f"dense weights: a state of {size} bytes, got {body.nbytes} bytes from {begin} on"
            )
        if self._arriving is None or self._arriving[0] != ticket:
            self._arriving = (ticket, room_for(size))
        arriving = self._arriving[1].numpy()
        if len(arriving) != size:
            raise InvalidArgumentError(f"dense weights: a state of {len(arriving)} bytes became one of {size}")
        arriving[begin : begin + body.nbytes] = np.frombuffer(body, dtype=np.uint8)
        return b"", ()

    def _resume(self, head: bytes, body: memoryview) -> Answer:  # noqa: ARG002
        values = wire.decode(head)
        ticket = wire.field(values, "ticket")
        weights = self._require_layout()
        if self._resumed_by == ticket:
            return b"", ()
        if self._arriving is None or self._arriving[0] != ticket:
            raise FailedPreconditionError("dense weights: there is no state to resume from; load it first")
        stamps = wire.decode_stamps(values["stamps"])
        weights.load(unpack(self._arriving[1], wire.field(values, "index_bytes")))
        self._clock.resume(stamps)
        self._arriving, self._resumed_by, self._failure = None, ticket, None
        self._version += 1
        return b"", ()

    def _require_layout(self) -> HostedWeights:
        if self._weights is None:
            raise FailedPreconditionError(
                "dense weights: no client has configured them yet, or the server was restarted; create a DenseClient,"
                " and restore the last checkpoint"
            )
        return self._weights

    def _require_weights(self) -> HostedWeights:
        if self._failure is not None:
            raise FailedPreconditionError(
                f"dense weights: an update failed halfway ({self._failure}), so they are inconsistent; restore the"
                " last checkpoint"
            )
        return self._require_layout()
