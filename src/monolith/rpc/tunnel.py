"""Tunnel for frames through the control port: for TLS where an end cannot use it on the frame port.

The bytes of a connection travel as messages of one gRPC stream in each direction; the core at either end sees a plain
local connection. `Tunnel` is the client's end, `FrameRelay` the server's:

    FrameClient -> loopback -> Tunnel == stream of the control port, TLS ==> FrameRelay -> FrameServer.adopt

Nothing is buffered between them: a chunk is read from a socket after the chunk before it was sent, so that a slow
reader applies back-pressure to the other end. A tunnel costs more than plain sockets: every byte passes through Python
and gRPC twice.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
import urllib.parse
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from monolith import _core
from monolith.background import END, Backoff, End, PeriodicThread
from monolith.closing import Closing
from monolith.errors import InvalidArgumentError, OpError
from monolith.rpc.credentials import ServerCredentials, load_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_log = logging.getLogger(__name__)

FRAMES_METHOD = "/monolith.ps.ParameterServer/Frames"
"""Bidirectional stream of raw byte chunks, without a message around them."""

_LOOPBACK = "127.0.0.1"
_PIECE_BYTES = 1 << 18
"""Maximum size of one read. Larger chunks are not faster, and several streams share the memory."""
_GOODBYE_SECONDS = 1.0
"""How long a client has to read the reason for the end of its connection."""

_DENIED, _MISMATCH = 8, 1
"""Codes of errors in frames; docs/formats/frames.md."""


class Tunnel(Closing):
    """The client's end: connections to `address` are forwarded to the frame port of the server. A context manager.

    A broken stream ends its connection, and the frame client reconnects. A permanent rejection by the server (wrong
    token, or no such method) is passed to the frame client as an error; transient errors are logged, once for each
    reason. Every process of this machine can connect to `address`: the token in the handshake of the frames protects
    the server.

    Args:
        channel: Channel to the control port of the server; the caller keeps ownership.
        metadata: Credentials of the calls.
        max_connections: Further connections are closed immediately.
    """

    def __init__(self, channel: Any, *, metadata: Sequence[tuple[str, str]] = (), max_connections: int = 256) -> None:
        if max_connections < 1:
            raise InvalidArgumentError(f"tunnel: max_connections must be >= 1, got {max_connections}")
        self._grpc = load_grpc(who="a tunnel for frames", extra="ps")
        self._open = channel.stream_stream(FRAMES_METHOD)
        self._metadata = tuple(metadata)
        self._max_connections = max_connections
        self._lock = threading.Lock()  # guards the fields below
        self._links: dict[_ClientLink, threading.Thread] = {}
        self._closed = False
        self._trouble = ""
        self._listener = socket.create_server((_LOOPBACK, 0), backlog=max_connections)
        self.address: tuple[str, int] = (_LOOPBACK, self._listener.getsockname()[1])
        """Address for frame clients."""
        self._acceptor = PeriodicThread(self._accept, every=0.0, name="ps-tunnel", backoff=Backoff(0.1, 1.0))
        self._acceptor.start()

    def close(self) -> None:
        """Ends all connections and waits for the threads. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            links = dict(self._links)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.close()
        self._listener.close()
        for link in links:
            link.end()
        for thread in links.values():
            thread.join()

    def _accept(self) -> End | None:
        try:
            connection = self._listener.accept()[0]
        except OSError:
            if self._closed:
                return END
            raise  # may pass, such as a lack of descriptors
        link = _ClientLink(connection, self._grpc.RpcError)
        thread = threading.Thread(target=self._carry, args=(link,), name="ps-tunnel-link", daemon=True)
        with self._lock:
            is_welcome = not self._closed and len(self._links) < self._max_connections
            if is_welcome:
                thread.start()
                self._links[link] = thread
        if not is_welcome:
            link.close()
        return None

    def _carry(self, link: _ClientLink) -> None:
        try:
            trouble = link.carry(lambda pieces: self._open(pieces, metadata=self._metadata))
            with self._lock:
                is_news = trouble not in ("", self._trouble) and not self._closed
                self._trouble = trouble or self._trouble
            if is_news:
                _log.warning("tunnel: a connection to a parameter server ended: %s", trouble)
        finally:
            with self._lock:
                del self._links[link]


class _ClientLink:
    """One connection and its stream. One thread calls `carry`; gRPC reads the chunks in another."""

    def __init__(self, connection: socket.socket, rpc_error: type[Exception]) -> None:
        self._socket = connection
        self._rpc_error = rpc_error
        self._reading = threading.Lock()  # prevents a close of the socket during a read
        self._call: Any = None
        self._is_ended = False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def carry(self, open_stream: Callable[[Iterator[bytes]], Any]) -> str:
        """Copies bytes until either side ends; returns the reason if it is worth logging."""
        has_answered = False
        try:
            self._call = open_stream(iter(self))
            if self._is_ended:
                self._call.cancel()  # `end` ran before there was a call to cancel
            for piece in self._call:
                has_answered = True
                self._socket.sendall(piece)
        except self._rpc_error as error:
            if not has_answered:
                self._quote(error)
            return _trouble_of(error)
        except OSError:  # the frame client has disconnected
            return ""
        else:
            return ""
        finally:
            self.close()

    def end(self) -> None:
        """Makes `carry` return."""
        self._is_ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """Closes both sides."""
        self.end()
        with self._reading:
            self._socket.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        with self._reading:
            try:
                piece = self._socket.recv(_PIECE_BYTES)
            except OSError:
                piece = b""
        if not piece:
            raise StopIteration  # half-close: the server sees the end of input, and its remaining bytes are passed on
        return piece

    def _quote(self, error: Any) -> None:
        # Permanent errors only: a frame client stops retrying when its handshake is answered with an error.
        code = {"UNAUTHENTICATED": _DENIED, "PERMISSION_DENIED": _DENIED, "UNIMPLEMENTED": _MISMATCH}.get(
            error.code().name
        )
        if code is None:
            return
        with suppress(OSError):
            self._socket.sendall(_error_frame(code, error.details() or error.code().name))
            self._socket.shutdown(socket.SHUT_WR)
            self._hear_out()

    def _hear_out(self) -> None:
        """Drains the socket before the close: unread bytes would reset the connection and discard the reason."""
        self._socket.settimeout(_GOODBYE_SECONDS)
        end = time.monotonic() + _GOODBYE_SECONDS
        while self._reading.acquire(timeout=max(0.0, end - time.monotonic())):
            try:
                if not self._socket.recv(_PIECE_BYTES):
                    return
            finally:
                self._reading.release()


class FrameRelay:
    """The server's end: streams of the control port are connections of the frame server.

    Each stream has two threads of its own and uses none of gRPC's, which stay free for control calls.

    Args:
        adopt: Gives the descriptor of a connection to the frame server, with the address of its peer.
        credentials: Credentials that callers must present.
        max_streams: Further streams are rejected; their clients retry.
    """

    def __init__(
        self, adopt: Callable[[int, str], None], credentials: ServerCredentials, *, max_streams: int = 256
    ) -> None:
        if max_streams < 1:
            raise InvalidArgumentError(f"frame relay: max_streams must be >= 1, got {max_streams}")
        self._adopt = adopt
        self._credentials = credentials
        self._max_streams = max_streams
        self._lock = threading.Lock()  # guards the fields below
        self._links: dict[_ServerLink, tuple[threading.Thread, threading.Thread]] = {}
        self._closed = False

    def handler(self) -> Any:
        """Returns the handler for `grpc.server(handlers=[...])` or `add_generic_rpc_handlers`."""
        grpc = load_grpc(who="a parameter server", extra="ps")

        def relay(pieces: Iterator[bytes], context: Any, send: Callable[[bytes | None], None]) -> None:
            if not self._credentials.accepts(context.invocation_metadata()):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong or missing")
            try:
                link = self._open(pieces, send, urllib.parse.unquote(context.peer()).partition(":")[2])
            except (OSError, OpError) as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"the frame server takes no connection: {error}")
            if link is None:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{self._max_streams} streams of frames are open, no more are taken",
                )
            elif not context.add_callback(link.end):
                link.end()  # the caller has disconnected already

        relay.experimental_non_blocking = True  # type: ignore[attr-defined]  # as gRPC's own health service does it
        service, _, method = FRAMES_METHOD.lstrip("/").rpartition("/")
        return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(relay)})

    @property
    def num_streams(self) -> int:
        """Number of open streams."""
        with self._lock:
            return len(self._links)

    def close(self) -> None:
        """Ends all streams, rejects new ones, and waits for the threads. Idempotent."""
        with self._lock:
            self._closed = True
            links = dict(self._links)
        for link in links:
            link.end()
        for threads in links.values():
            for thread in threads:
                thread.join()

    def _open(self, pieces: Iterator[bytes], send: Callable[[bytes | None], None], peer: str) -> _ServerLink | None:
        connection, theirs = socket.socketpair()
        link = _ServerLink(connection, self._forget)
        threads = (
            threading.Thread(target=link.carry_in, args=(pieces,), name="ps-relay-in", daemon=True),
            threading.Thread(target=link.carry_out, args=(send,), name="ps-relay-out", daemon=True),
        )
        with self._lock:
            if self._closed or len(self._links) >= self._max_streams:
                connection.close()
                theirs.close()
                return None
            try:
                self._adopt(theirs.detach(), peer)
            except BaseException:
                connection.close()
                raise
            self._links[link] = threads
            for thread in threads:
                thread.start()
        return link

    def _forget(self, link: _ServerLink) -> None:
        with self._lock:
            del self._links[link]


class _ServerLink:
    """One stream and its connection, with one thread for each direction."""

    def __init__(self, connection: socket.socket, on_end: Callable[[_ServerLink], None]) -> None:
        self._socket = connection
        self._on_end = on_end
        self._lock = threading.Lock()  # guards the fields below
        self._num_ended = 0

    def carry_in(self, pieces: Iterator[bytes]) -> None:
        """Copies bytes from the caller to the frame server."""
        try:
            for piece in pieces:
                self._socket.sendall(piece)
            self._socket.shutdown(socket.SHUT_WR)  # half-close: answers may still come
        except Exception:  # noqa: BLE001 - gRPC raises a bare one when the call was cancelled
            self.end()
        finally:
            self._end_direction()

    def carry_out(self, send: Callable[[bytes | None], None]) -> None:
        """Copies bytes from the frame server to the caller."""
        try:
            while piece := self._socket.recv(_PIECE_BYTES):
                send(piece)
        except OSError:
            pass
        finally:
            send(None)  # ends the call, which ends its input and calls `end`
            self._end_direction()

    def end(self) -> None:
        """Ends both directions."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end_direction(self) -> None:
        with self._lock:
            self._num_ended += 1
            is_over = self._num_ended == 2
        if is_over:
            self._socket.close()
            self._on_end(self)


def _trouble_of(error: Any) -> str:
    code = error.code().name
    return "" if code == "CANCELLED" else f"{code}: {error.details()}"


def _error_frame(code: int, text: str) -> bytes:
    message = text.encode()
    head = struct.pack("<II", code, len(message)) + message
    front = struct.pack("<4sHHQQII", b"MMLF", _core.FRAME_VERSION, 0, 0, 0, len(head), 0)
    return front + struct.pack("<II", _core.crc32c(front), 0) + head
