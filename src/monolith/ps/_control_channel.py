"""The control of one parameter server, as a client calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith import errors
from monolith.ps._control_handler import MESSAGE_BYTES, SERVICES, classes_of, import_grpc
from monolith.ps._failures import error_of
from monolith.ps.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from monolith.cluster.credentials import ClientCredentials

__all__ = ["ControlCall", "ControlChannel", "outcomes_of", "results_of"]

_KEEP_ALIVE_MS = 10_000
_CLASSES = {
    found.error_code: found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, errors.OpError) and errors.OpError in found.__bases__
}
"""Status code to the error of that name."""


class ControlCall:
    """A call on its way. Any thread may ask for its result."""

    def __init__(self, channel: ControlChannel, method: str, future: Any, timeout_seconds: float | None) -> None:
        self._channel = channel
        self._method = method
        self._future = future
        self._timeout_seconds = timeout_seconds

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls it when the answer is there, or at once if it is."""
        self._future.add_done_callback(lambda _: callback())

    def done(self) -> bool:
        """Whether the answer is there."""
        return bool(self._future.done())

    def cancel(self) -> None:
        """Ends it, unless the answer is there; what was asked for may still happen."""
        self._future.cancel()

    def result(self) -> Any:
        """The answer.

        Raises:
            OpError: what the server says, or that it does not answer.
        """
        grpc = import_grpc()
        try:
            answer = self._future.result()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED and not self._channel.is_closed:
                raise self._channel.ended(self._method) from error
            raise self._channel.translated(error, self._method, self._timeout_seconds) from error
        except grpc.FutureCancelledError as error:
            raise errors.CancelledError(f"{self._channel.title}: {self._method} was cancelled") from error
        if answer.HasField("failure"):
            raise error_of(answer.failure, server=self._channel.title)
        return answer


class ControlChannel:
    """A connection to one server, which heals by itself. Any thread may call it.

    Args:
        index: Place of the server among all.
        address: ``host:port`` of its control.
        credentials: What to show it, and whom to trust.
    """

    def __init__(self, index: int, address: str, credentials: ClientCredentials) -> None:
        grpc = import_grpc()
        self.address = address
        self.title = f"parameter server {index} at {address}"
        """For messages."""
        self._metadata = credentials.metadata()
        self.is_closed = False
        """Whether it was closed here; its calls are cancelled then."""
        self._moved_to: str | None = None
        options = [
            ("grpc.enable_http_proxy", 0),  # a proxy for the web cannot reach a server
            ("grpc.use_local_subchannel_pool", 1),  # connections of two clients in one process end apart
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            # A server that is cut off without a word is noticed while it is awaited.
            ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEP_ALIVE_MS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        secure = credentials.grpc_credentials()
        if secure is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, secure, options)
        self._methods = {method.name: self._prepared(method) for service in SERVICES for method in service.methods}

    def begin(
        self, method: str, request: Any, timeout_seconds: float | None, *, wait_for_ready: bool = True
    ) -> ControlCall:
        """Sends a call; one that takes a stream is given an iterator of its messages.

        Args:
            method: Its name on the wire.
            request: Its message or messages.
            timeout_seconds: How long its answer is awaited; None: until the connection fails.
            wait_for_ready: Wait for a server that cannot be reached just now.

        Raises:
            FailedPreconditionError: the connection was closed.
            UnavailableError: the server has moved.
        """
        self._require_open()
        future = self._methods[method].future(
            request, timeout=timeout_seconds, metadata=self._metadata, wait_for_ready=wait_for_ready
        )
        return ControlCall(self, method, future, timeout_seconds)

    def open_stream(self, method: str, request: Any, timeout_seconds: float | None = None) -> Any:
        """A call whose answers come one by one; the caller ends it by `cancel`."""
        self._require_open()
        return self._methods[method](request, timeout=timeout_seconds, metadata=self._metadata, wait_for_ready=True)

    def open_tunnel(self) -> Tunnel:
        """A way for frames through this connection; the caller closes it first."""
        self._require_open()
        return Tunnel(self._channel, metadata=self._metadata)

    def answers(self, stream: Iterable[Any], method: str) -> Iterator[Any]:
        """The answers of a stream, until it ends.

        Raises:
            OpError: what the server says, or that it does not answer any more.
        """
        grpc = import_grpc()
        try:
            for answer in stream:
                if answer.HasField("failure"):
                    raise error_of(answer.failure, server=self.title)
                yield answer
        except grpc.RpcError as error:
            raise self.translated(error, method, None) from error

    def translated(self, error: Any, method: str, timeout_seconds: float | None) -> errors.OpError:
        """An error of gRPC as one of ours."""
        code, text = error.code().value[0], error.details()
        if code == errors.CancelledError.error_code and self._moved_to is not None:
            return self._moved_error()
        if code == errors.DeadlineExceededError.error_code:
            return errors.DeadlineExceededError(
                f"{self.title}: no answer to {method} within {timeout_seconds} s; is it up, and can it be reached from"
                " here? What was asked for may still happen"
            )
        if code == errors.UnavailableError.error_code:
            return errors.UnavailableError(
                f"{self.title} does not answer {method} ({text}); has it ended, or does it speak TLS?"
            )
        return _CLASSES.get(code, errors.UnknownError)(f"{self.title}: {method}: {text}")

    def ended(self, method: str) -> errors.UnavailableError:
        """A server that ends cancels the calls that it has not begun to answer."""
        return errors.UnavailableError(f"{self.title} ended before it answered {method}; ask again when it is back")

    def close(self, *, moved_to: str | None = None) -> None:
        """Ends the connection, and calls on their way. Calling it again does nothing.

        Args:
            moved_to: Where the server is now; None: nobody asks it any more. Whoever waits for an answer is told to ask
                there, as of a server that cannot be reached just now.
        """
        if self.is_closed:
            return
        self._moved_to = moved_to
        self.is_closed = True
        self._channel.close()

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
    """The answers, once all are there.

    Raises:
        OpError: of the first call that failed.
    """
    answers, failed = outcomes_of(calls)
    if failed:
        raise failed[0]
    return answers


def outcomes_of(calls: Iterable[ControlCall]) -> tuple[list[Any], list[errors.OpError]]:
    """The answers, once all are there, None for those that failed; and how they failed."""
    answers: list[Any] = []
    failed: list[errors.OpError] = []
    for call in calls:
        try:
            answers.append(call.result())
        except errors.OpError as error:
            answers.append(None)
            failed.append(error)
    return answers, failed
