"""HTTP by uvicorn, in a thread with an event loop of its own."""

from __future__ import annotations

import importlib
import math
import socket
import threading
from typing import TYPE_CHECKING, Any

from monolith.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.serving.server.config import ServerConfig

__all__ = ["HttpFront"]

_BACKLOG = 2048
_START_SECONDS = 60.0


class HttpFront:
    """Answers HTTP until it is closed.

    Args:
        application: What answers, by ASGI.
        options: Where it listens, and its limits.

    Raises:
        UnavailableError: the port is taken.
    """

    def __init__(self, application: Callable[..., Any], options: ServerConfig) -> None:
        uvicorn, protocol = _import_uvicorn()
        self._socket = _listen(options.host, options.port or 0)
        self.port: int = self._socket.getsockname()[1]
        """The port it listens on."""
        config = uvicorn.Config(
            application,
            http=protocol.protocol_with(options.limits),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=math.ceil(options.limits.head_seconds),
            timeout_graceful_shutdown=max(1, math.ceil(options.drain_seconds)),
            ssl_certfile=options.tls_certificate,
            ssl_keyfile=options.tls_key,
            ssl_ca_certs=options.tls_client_ca,
            **({} if options.tls_client_ca is None else {"ssl_cert_reqs": 2}),
        )
        self._server: Any = _started_server(uvicorn, config)
        self._thread = threading.Thread(target=self._run, name=f"http-{self.port}", daemon=True)
        self._thread.start()
        if not self._server.is_up.wait(_START_SECONDS) or not self._thread.is_alive():
            self.close()
            raise UnavailableError(f"the HTTP server on port {self.port} did not start; the log says why")

    def close(self) -> None:
        """Listens no more, lets requests that are there be answered, and ends."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.is_up.set()


def _started_server(uvicorn: Any, config: Any) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]  # imported on first use
        """Says when it listens, and leaves signals to the process."""

        def __init__(self) -> None:
            super().__init__(config)
            self.is_up = threading.Event()

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            self.is_up.set()

    return Server()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UnavailableError(f"cannot listen on {host!r} port {port}: {error}; choose another port, or 0") from error
    # Connections have it from here; asyncio sets it only for sockets that name their protocol. Without it the body of
    # an answer waits until the client has acknowledged its head, 40 ms on a connection that is used again.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _import_uvicorn() -> tuple[Any, Any]:
    try:
        return importlib.import_module("uvicorn"), importlib.import_module("monolith.serving.server.http_protocol")
    except ModuleNotFoundError as error:
        message = f"the server needs {error.name}; run: pip install 'monolith-torch[serving]'"
        raise ModuleNotFoundError(message, name=error.name) from error
