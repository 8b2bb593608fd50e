"""Liveness stream, which shows a server that a client is connected."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monolith.errors import CancelledError, FailedPreconditionError, UnavailableError
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.rpc.channel import ControlChannel

__all__ = ["LivenessStream"]


class LivenessStream:
    """The liveness stream of one client at one server. Restartable after a lost connection. Not thread-safe.

    Args:
        channel: The connection.
        client: Id of the client.
        life: Random id of the server's process.
        on_end: Called when the stream has ended, by either side; from a gRPC thread.
    """

    def __init__(
        self, channel: ControlChannel, client: int, life: int, on_end: Callable[[], None] = lambda: None
    ) -> None:
        self._channel = channel
        self._request = messages.StayRequest(client=client)
        self._life = life
        self._on_end = on_end
        self._stream: Any = None
        self._is_known = False

    def begin(self) -> None:
        """Opens the stream, unless it is active."""
        if self._stream is None or not self._stream.is_active():
            self._stream = self._channel.open_stream("Stay", self._request)
            self._is_known = False
            self._stream.add_callback(self._on_end)

    def require(self, timeout_seconds: float) -> None:
        """Waits until the server has confirmed the stream.

        Raises:
            FailedPreconditionError: the server is another process than before.
            UnavailableError: the server does not answer.
        """
        if self._is_known:
            return
        limit = threading.Timer(timeout_seconds, self._stream.cancel)
        limit.start()
        try:
            answer = next(self._channel.answers(self._stream, "Stay"))
        except (CancelledError, StopIteration) as error:
            raise UnavailableError(
                f"{self._channel.title}: it did not take this client in within {timeout_seconds} s, or is about to end"
            ) from error
        finally:
            limit.cancel()
        if answer.life != self._life:
            self.end()
            raise FailedPreconditionError(
                f"{self._channel.title} was restarted after this client connected, and lost its rows; connect to the"
                " servers again and restore a checkpoint"
            )
        self._is_known = True

    def end(self) -> None:
        """Ends the stream. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
            self._is_known = False
