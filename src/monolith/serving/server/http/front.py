"""HTTP front end in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import importlib
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monolith.errors import UnavailableError
from monolith.observe import share_of_descriptors

if TYPE_CHECKING:
    from monolith.serving.server.config import ServerConfig
    from monolith.serving.server.http.message import HttpApplication

_BACKLOG = 2048
_LOOK_SECONDS = 0.02
"""Interval of the checks whether connections have ended."""


class HttpFront:
    """HTTP front end of a server, until it is closed."""

    def __init__(self, application: HttpApplication, options: ServerConfig) -> None:
        protocol = _import_protocol()
        self._connections: dict[Any, None] = {}
        most = share_of_descriptors(options.limits.connections, 0.75)  # leaves descriptors for files, models and gRPC
        self._drain_seconds = options.drain_seconds
        tls = _tls_of(options)
        self._socket = _listen(options.host, options.port or 0)
        self.port: int = self._socket.getsockname()[1]
        """Port of the server."""
        self._loop = asyncio.new_event_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Cancelled by `close`."""
        listening = self._loop.create_server(
            lambda: protocol.HttpConnection(application, options.limits, self._connections, most),
            sock=self._socket,
            backlog=_BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else options.limits.head_seconds,
        )
        server = self._loop.run_until_complete(listening)
        self._thread = threading.Thread(target=self._run, args=(server,), name=f"http-{self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening, drains running requests, and ends the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.cancel)
        self._thread.join()
        self._socket.close()

    def _run(self, server: asyncio.Server) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._ended)
            server.close()
            self._loop.run_until_complete(self._drain())
        finally:
            self._loop.close()

    async def _drain(self) -> None:
        for connection in list(self._connections):
            connection.shut_down()
        deadline = self._loop.time() + self._drain_seconds
        while self._connections and self._loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # lets them close their sockets


def _tls_of(options: ServerConfig) -> ssl.SSLContext | None:
    if options.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.tls_certificate, options.tls_key)
    if options.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(options.tls_client_ca)
    return context


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UnavailableError(f"cannot listen on {host!r} port {port}: {error}; choose another port, or 0") from error
    # Connections inherit it; asyncio sets it only for sockets with an explicit protocol. Without it the second part of
    # an answer waits until the client has acknowledged the first, 40 ms on a reused connection.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _import_protocol() -> Any:
    try:
        return importlib.import_module("monolith.serving.server.http.protocol")
    except ModuleNotFoundError as error:
        message = f"the server needs {error.name}; run: pip install 'monolith-torch[serving]'"
        raise ModuleNotFoundError(message, name=error.name) from error
