"""Client of the control service of one parameter server."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monolith import errors
from monolith.rpc.credentials import ClientCredentials, load_grpc
from monolith.rpc.endpoints import keep_alive, open_channel
from monolith.rpc.handler import MESSAGE_BYTES, SERVICES, classes_of, error_of, error_of_failure
from monolith.rpc.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class ControlCall:
    """A call in flight. Thread-safe."""

    def __init__(self, channel: ControlChannel, method: str, future: Any, timeout_seconds: float | None) -> None:
        self._channel = channel
        self._method = method
        self._future = future
        self._timeout_seconds = timeout_seconds

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the answer has arrived; immediately if it has already."""
        self._future.add_done_callback(lambda _: callback())

    def done(self) -> bool:
        """Returns whether the answer has arrived."""
        return bool(self._future.done())

    def cancel(self) -> None:
        """Cancels the call, unless it is answered; the server may still execute it."""
        self._future.cancel()

    def result(self) -> Any:
        """Waits for the answer and returns it.

        Raises:
            OpError: the server returned an error, or does not answer.
        """
        grpc = load_grpc()
        try:
            answer = self._future.result()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED and not self._channel.is_closed:
                raise self._channel.ended(self._method) from error
            raise self._channel.translated(error, self._method, self._timeout_seconds) from error
        except grpc.FutureCancelledError as error:
            raise errors.CancelledError(f"{self._channel.title}: {self._method} was cancelled") from error
        if answer.HasField("failure"):
            raise error_of_failure(answer.failure, server=self._channel.title)
        return answer


class ControlChannel:
    """A connection to one server, which reconnects by itself. Thread-safe.

    Args:
        index: Index of the server.
        address: Control address, ``host:port``.
        credentials: Token and certificates.
    """

    def __init__(self, index: int, address: str, credentials: ClientCredentials) -> None:
        load_grpc(who="a parameter server", extra="ps")
        self.address = address
        self.title = f"parameter server {index} at {address}"
        """Name of the server in messages."""
        self._metadata = credentials.metadata()
        self.is_closed = False
        """Whether `close` was called; calls are cancelled then."""
        self._moved_to: str | None = None
        # Without a limit of pings a server that is cut off is detected while a call waits for it.
        options = [*keep_alive(), ("grpc.http2.max_pings_without_data", 0)]
        self._channel = open_channel(address, credentials, message_bytes=MESSAGE_BYTES, options=options)
        self._methods = {method.name: self._prepared(method) for service in SERVICES for method in service.methods}

    def begin(
        self, method: str, request: Any, timeout_seconds: float | None, *, wait_for_ready: bool = True
    ) -> ControlCall:
        """Sends a call; the request of a streaming call is an iterator of messages.

        Args:
            method: Name of the call on the wire.
            request: Its message or messages.
            timeout_seconds: Time limit for the answer; None: until the connection fails.
            wait_for_ready: Whether to wait for a server that is unreachable now.

        Raises:
            FailedPreconditionError: the connection was closed.
            UnavailableError: the server has moved.
        """
        with self._open():
            future = self._methods[method].future(
                request, timeout=timeout_seconds, metadata=self._metadata, wait_for_ready=wait_for_ready
            )
        return ControlCall(self, method, future, timeout_seconds)

    def open_stream(self, method: str, request: Any, timeout_seconds: float | None = None) -> Any:
        """Starts a call with streamed answers; the caller ends it with `cancel`."""
        with self._open():
            return self._methods[method](request, timeout=timeout_seconds, metadata=self._metadata, wait_for_ready=True)

    def open_tunnel(self) -> Tunnel:
        """Opens a tunnel for frames through this connection; the caller closes it first."""
        with self._open():
            return Tunnel(self._channel, metadata=self._metadata)

    def answers(self, stream: Iterable[Any], method: str) -> Iterator[Any]:
        """Yields the answers of a stream until it ends.

        Raises:
            OpError: the server returned an error, or does not answer any more.
        """
        grpc = load_grpc()
        try:
            for answer in stream:
                if answer.HasField("failure"):
                    raise error_of_failure(answer.failure, server=self.title)
                yield answer
        except grpc.RpcError as error:
            raise self.translated(error, method, None) from error

    def translated(self, error: Any, method: str, timeout_seconds: float | None) -> errors.OpError:
        """Converts a gRPC error to an `OpError`."""
        code, text = error.code().value[0], error.details()
        if code == errors.CancelledError.error_code and self._moved_to is not None:
            return self._moved_error()
        late = (
            f"{self.title}: no answer to {method} within {timeout_seconds} s; is it up and reachable from here?"
            " The server may still execute the request"
        )
        absent = f"{self.title} does not answer {method} ({text}); has it ended, or does it speak TLS?"
        texts = {errors.DeadlineExceededError: late, errors.UnavailableError: absent}
        return error_of(error, prefix=f"{self.title}: {method}: ", texts=texts)

    def ended(self, method: str) -> errors.UnavailableError:
        """Returns the error for a server that ended: it cancels calls that it has not begun to answer."""
        return errors.UnavailableError(f"{self.title} ended before it answered {method}; ask again when it is back")

    def close(self, *, moved_to: str | None = None) -> None:
        """Closes the connection and cancels calls in flight. Idempotent.

        Args:
            moved_to: New address of the server; None: it is not called any more. With an address, pending calls fail
                with `UnavailableError`, so that callers retry there.
        """
        if self.is_closed:
            return
        self._moved_to = moved_to
        self.is_closed = True
        self._channel.close()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Starts a call on the open connection; names the state of one that another thread closes meanwhile."""
        self._require_open()
        try:
            yield
        except ValueError:  # gRPC's error for a closed channel
            self._require_open()
            raise

    def _require_open(self) -> None:
        if self._moved_to is not None:
            raise self._moved_error()
        if self.is_closed:
            raise errors.FailedPreconditionError(f"{self.title}: its PsCluster was closed; make another one")

    def _moved_error(self) -> errors.UnavailableError:
        return errors.UnavailableError(f"{self.title}: it is at {self._moved_to} now; ask again")

    def _prepared(self, method: Any) -> Any:
        make = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, False): self._channel.stream_unary,
        }[method.client_streaming, method.server_streaming]
        request_class, answer_class = classes_of(method)
        return make(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=answer_class.FromString,
        )


def results_of(calls: Iterable[ControlCall]) -> list[Any]:
    """Waits for all answers and returns them.

    Raises:
        OpError: the error of the first call that failed.
    """
    answers, failed = outcomes_of(calls)
    if failed:
        raise failed[0]
    return answers


def outcomes_of(calls: Iterable[ControlCall]) -> tuple[list[Any], list[errors.OpError]]:
    """Waits for all answers; returns them, with None for calls that failed, and the errors."""
    answers: list[Any] = []
    failed: list[errors.OpError] = []
    for call in calls:
        try:
            answers.append(call.result())
        except errors.OpError as error:
            answers.append(None)
            failed.append(error)
    return answers, failed
