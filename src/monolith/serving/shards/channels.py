"""Connections to the replicas of shards, and calls with deadlines: one, or one to each of several shards, hedged."""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from monolith.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from monolith.rpc import ClientCredentials, error_of, keep_alive, load_grpc, open_channel
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.shards.shard_server import LIFE_KEY, MESSAGE_BYTES, SPARSE_KEY
from monolith.serving.tensor_messages import METHODS, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.clock import Clock


class ShardAnswer(NamedTuple):
    """Response of a shard, with the metadata of the call."""

    response: Any
    """Response message of the method."""
    life: str | None
    """Incarnation of the process that answered; None: not reported."""
    sparse: Mapping[str, int]
    """Part of a log -> number of its last increment in the rows."""


class ShardCall:
    """A call in flight."""

    def __init__(self, address: str, future: Any, timeout_seconds: float) -> None:
        self.address = address
        self._future = future
        self._timeout_seconds = timeout_seconds

    def on_done(self, callback: Callable[[], None]) -> None:
        """Registers a callback for the end of the call, called in any thread."""
        self._future.add_done_callback(lambda _: callback())

    def cancel(self) -> None:
        """Cancels the call."""
        self._future.cancel()

    def result(self) -> ShardAnswer:
        """Waits for the answer, at most until the deadline.

        Raises:
            OpError: the error of the shard, or the shard does not respond.
        """
        grpc = load_grpc()
        who = f"shard at {self.address}"
        try:
            response = self._future.result()
            metadata = {key: value for key, value in self._future.trailing_metadata() or () if isinstance(value, str)}
        except grpc.RpcError as error:
            late = f"{who}: no answer within {self._timeout_seconds:g} s"
            raise error_of(error, prefix=f"{who}: ", texts={DeadlineExceededError: late}) from error
        except grpc.FutureCancelledError as error:
            raise CancelledError(f"{who}: the call was cancelled") from error
        try:
            sparse = {str(part): int(number) for part, number in json.loads(metadata.get(SPARSE_KEY, "{}")).items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InternalError(f"{who}: {SPARSE_KEY} is malformed; is it a shard?") from error
        return ShardAnswer(response, metadata.get(LIFE_KEY), sparse)


class ShardChannels:
    """One connection per address, opened on first use. Thread-safe."""

    def __init__(self, credentials: ClientCredentials | None = None) -> None:
        self._credentials = credentials or ClientCredentials()
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Any, dict[str, Any]]] = {}
        """Address -> channel, and the stub of each method."""
        self._is_closed = False

    def predict(self, address: str, request: messages.PredictRequest, timeout_seconds: float) -> ShardCall:
        """Sends a request. A call to an unreachable address fails immediately; the next call tries to reconnect."""
        return self._call(address, "Predict", request, timeout_seconds)

    def status(self, address: str, spec: messages.ModelSpec, timeout_seconds: float) -> ShardCall:
        """Queries the status of a replica."""
        request = messages.GetModelStatusRequest(model_spec=spec)
        return self._call(address, "GetModelStatus", request, timeout_seconds)

    def life_of(self, address: str, model: str, timeout_seconds: float) -> str:
        """Returns the incarnation of a replica: that of its process if reported, else the version that it serves."""
        answer = self.status(address, messages.ModelSpec(name=model), timeout_seconds).result()
        if answer.life is not None:
            return answer.life
        available = messages.ModelVersionStatus.AVAILABLE
        served = [status.version for status in answer.response.model_version_status if status.state == available]
        return f"version {max(served, default=None)}"

    def _call(self, address: str, method: str, request: Any, timeout_seconds: float) -> ShardCall:
        metadata = self._credentials.metadata()
        stub = self._stub(address, method)
        future = stub.future(request, timeout=timeout_seconds, metadata=metadata, wait_for_ready=False)
        return ShardCall(address, future, timeout_seconds)

    def keep(self, addresses: set[str]) -> None:
        """Closes the connections to all other addresses."""
        with self._lock:
            gone = [self._open.pop(address) for address in list(self._open) if address not in addresses]
        for channel, _ in gone:
            channel.close()

    def close(self) -> None:
        """Closes all connections, and cancels calls in flight. Idempotent."""
        self._is_closed = True
        self.keep(set())

    def _stub(self, address: str, method: str) -> Any:
        with self._lock:
            if self._is_closed:
                raise FailedPreconditionError("shards: the connections were closed")
            if address not in self._open:
                self._open[address] = self._connected(address)
            return self._open[address][1][method]

    def _connected(self, address: str) -> tuple[Any, dict[str, Any]]:
        load_grpc(who="serving", extra="serving")
        # Detects silently dropped connections.
        channel = open_channel(address, self._credentials, message_bytes=MESSAGE_BYTES, options=keep_alive())
        stubs = {
            name: channel.unary_unary(
                path_of(service, name),
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            for service, methods in METHODS.items()
            for name, method in methods.items()
        }
        return channel, stubs


_FINAL = (InvalidArgumentError, UnauthenticatedError, PermissionDeniedError)
"""Errors that another replica would return as well."""
_SHORTEST_SECONDS = 0.001

T = TypeVar("T")


class ShardQuestion(NamedTuple):
    """Request to one shard."""

    shard: str
    """Name of the shard, for messages."""
    request: messages.PredictRequest
    race: HedgedRequest


class ShardFanOut(Generic[T]):
    """Concurrent requests to several shards. Not thread-safe; for a single use.

    `read` parses the answer to a request; an `InternalError` that it raises counts as an error of the replica.
    `on_failed` is called with the address of each replica that failed, or was so slow that the request was hedged.
    """

    def __init__(
        self,
        channels: ShardChannels,
        questions: Sequence[ShardQuestion],
        *,
        seconds: float,
        read: Callable[[int, ShardAnswer], T],
        on_failed: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._channels = channels
        self._questions = questions
        self._read = read
        self._on_failed = on_failed
        self._clock = clock
        self._seconds = seconds
        self._deadline = clock.monotonic() + seconds
        self._done: queue.SimpleQueue[tuple[int, ShardCall]] = queue.SimpleQueue()
        self._calls: list[ShardCall] = []
        self._open = set(range(len(questions)))
        self.answers: dict[int, tuple[ShardAnswer, T]] = {}
        """Index of a request -> its answer, and the result of `read`."""
        self.lost: dict[int, OpError] = {}
        """Index of a request -> why no replica answered it."""

    def run(self) -> None:
        """Sends all requests, and returns when each is answered or lost.

        Raises:
            InvalidArgumentError, UnauthenticatedError, PermissionDeniedError: a shard rejects the request.
        """
        try:
            for number, question in enumerate(self._questions):
                self._ask(number, question.race.begin(self._clock.monotonic()))
            while self._open:
                self._take(self._next_event())
        finally:
            for call in self._calls:
                call.cancel()

    def _take(self, event: tuple[int, ShardCall] | None) -> None:
        now = self._clock.monotonic()
        if event is not None:
            self._finish(*event)
        elif now >= self._deadline:
            for number in sorted(self._open):
                self._lose(number, self._too_late(number))
        else:
            for number in sorted(self._open):
                race = self._questions[number].race
                slow, address = race.latest, race.hedge(now)
                if address is not None:
                    self._on_failed(slow)  # else every request would wait for it this long
                    self._ask(number, address)

    def _finish(self, number: int, call: ShardCall) -> None:
        if number not in self._open:
            return  # another replica was first
        try:
            answer = call.result()
            self.answers[number] = answer, self._read(number, answer)
            self._open.discard(number)
        except _FINAL:
            raise
        except OpError as error:
            self._on_failed(call.address)
            self._ask(number, self._questions[number].race.failed(error, self._clock.monotonic()))

    def _ask(self, number: int, address: str | None) -> None:
        race = self._questions[number].race
        if address is not None:
            left = max(_SHORTEST_SECONDS, self._deadline - self._clock.monotonic())
            call = self._channels.predict(address, self._questions[number].request, left)
            self._calls.append(call)
            call.on_done(lambda: self._done.put((number, call)))
        elif race.is_lost:
            unknown = UnavailableError(f"{self._questions[number].shard}: no replica of it is known")
            self._lose(number, race.errors[-1] if race.errors else unknown)

    def _lose(self, number: int, error: OpError) -> None:
        self.lost[number] = error
        self._open.discard(number)

    def _next_event(self) -> tuple[int, ShardCall] | None:
        """Returns a call that has ended; None if it is time to hedge, or the deadline has passed."""
        hedges = [self._questions[number].race.next_hedge for number in self._open]
        until = min([self._deadline, *(hedge for hedge in hedges if hedge is not None)])
        try:
            return self._done.get(timeout=max(0.0, until - self._clock.monotonic()))
        except queue.Empty:
            return None

    def _too_late(self, number: int) -> OpError:
        question = self._questions[number]
        return DeadlineExceededError(
            f"{question.shard}: none of its {len(question.race.replicas)} replicas answered within"
            f" {1000 * self._seconds:g} ms"
        )


@dataclass(slots=True)
class HedgedRequest:
    """Hedged request to one shard: calls one replica, and another one if it fails or is slow.

    Each is called at most once, in the order given.
    """

    replicas: Sequence[str]
    hedge_seconds: float
    """Delay after which another replica is called in addition."""
    next_hedge: float | None = None
    """Time at which `hedge` should be called; None: never."""
    errors: list[OpError] = field(default_factory=list)
    """Errors of the failed replicas, in order."""
    _num_called: int = 0
    _num_in_flight: int = 0

    def failed(self, error: OpError, now: float) -> str | None:
        """Records a failure; returns the replica to call instead, or None if there is none left."""
        self.errors.append(error)
        self._num_in_flight -= 1
        return self.begin(now)

    def hedge(self, now: float) -> str | None:
        """Returns the replica to call in addition to those in flight; None if too early, or none is left."""
        if self.next_hedge is None or now < self.next_hedge:
            return None
        return self.begin(now)

    @property
    def latest(self) -> str:
        """The replica called last. REQUIRES: one was called."""
        return self.replicas[self._num_called - 1]

    @property
    def is_lost(self) -> bool:
        """Whether no replica is left that could answer."""
        return self._num_in_flight == 0 and self._num_called == len(self.replicas)

    def begin(self, now: float) -> str | None:
        """Returns the replica to call next; None if there is none left."""
        if self._num_called == len(self.replicas):
            self.next_hedge = None
            return None
        replica = self.replicas[self._num_called]
        self._num_called += 1
        self._num_in_flight += 1
        self.next_hedge = now + self.hedge_seconds if self._num_called < len(self.replicas) else None
        return replica
