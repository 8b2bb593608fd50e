"""An HTTP server for a WSGI application that slow or many clients cannot fill."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from monolith.observe.descriptors import share_of_descriptors

__all__ = ["CONNECTION_SECONDS", "MOST_CONNECTIONS", "bounded_server"]

MOST_CONNECTIONS = 32
CONNECTION_SECONDS = 10.0


class _BoundedServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, which answers one request.

    A connection has a total time. One above the limit ends the oldest.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._most = share_of_descriptors(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        """Connections and when each began, the oldest first."""
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = time.monotonic()
            excess = list(self._open)[: max(0, len(self._open) - self._most)]
            self._hang_up(excess)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:  # so that no other connection has its descriptor when it is hung up on
            self._open.pop(request, None)
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """Closes connections that are open too long. Called twice a second by the accepting thread."""
        limit = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            self._hang_up([request for request, since in self._open.items() if since < limit])

    def _hang_up(self, requests: list[socket.socket]) -> None:
        """Shuts connections down, which ends the waits of their threads; the threads close them."""
        for request in requests:
            del self._open[request]
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Logs nothing."""


def bounded_server(application: Any, host: str, port: int) -> WSGIServer:
    """Returns a listening server; `serve_forever` answers.

    Raises:
        OSError: the address cannot be listened on.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = type("_Server", (_BoundedServer,), {"address_family": family})
    return make_server(str(address[0]), port, application, kind, handler_class=_SilentHandler)
