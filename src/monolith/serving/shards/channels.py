"""Connections to the replicas of shards, and calls with deadlines."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, InternalError
from monolith.rpc import ClientCredentials, error_of, keep_alive, load_grpc, open_channel
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.shards.shard_server import LIFE_KEY, MESSAGE_BYTES, SPARSE_KEY
from monolith.serving.wire_methods import METHODS, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
        """Sends a request. A call to an unreachable address fails immediately; the next call tries to reconnect.

        Raises:
            FailedPreconditionError: the channels are closed.
        """
        return self._call(address, "Predict", request, timeout_seconds)

    def status(self, address: str, spec: messages.ModelSpec, timeout_seconds: float) -> ShardCall:
        """Queries the status of a replica.

        Raises:
            FailedPreconditionError: the channels are closed.
        """
        request = messages.GetModelStatusRequest(model_spec=spec)
        return self._call(address, "GetModelStatus", request, timeout_seconds)

    def life_of(self, address: str, model: str, timeout_seconds: float) -> str:
        """Returns the incarnation of a replica: that of its process if reported, otherwise the version that it serves.

        Raises:
            OpError: the replica does not respond, or does not have the model.
        """
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
