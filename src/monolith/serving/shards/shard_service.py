"""`ShardService`: runs a shard as a process, with health, readiness, metrics and discovery."""

from __future__ import annotations

import json
import logging
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from monolith.background import END, End, PeriodicThread
from monolith.cluster import get_local_server_addr, split_address
from monolith.serving.server.config import LOOPBACK, ServerConfig
from monolith.serving.server.http.message import HttpRequest, HttpResponse, Reply
from monolith.serving.server.metrics import GAUGE_SECONDS, ServingMetrics
from monolith.serving.server.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.serving.shards.served_shard import ServedShard

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_TRY_AGAIN_SECONDS = 5.0
_EVERYWHERE = ("0.0.0.0", "::", "[::]")  # noqa: S104 - for comparison, not for listening


class Registration(NamedTuple):
    """Registration of a shard with a discovery service, once it is ready."""

    discovery: ServiceDiscovery
    """Discovery service; closed by its owner."""
    role: str
    replica: int
    """Index of the replica."""


class ShardService(ServerProcess):
    """Health, readiness, metrics and discovery of a shard, until it is closed. A context manager.

    Args:
        shard: A running shard; closed with this object.
        options: Ports of HTTP and metrics, credentials, and shutdown times.
        metrics: Metrics of the server.
        registration: Where to register; None: nowhere.

    Raises:
        UnavailableError: a port is taken.
    """

    def __init__(
        self,
        shard: ServedShard,
        options: ServerConfig,
        *,
        metrics: ServingMetrics,
        registration: Registration | None = None,
    ) -> None:
        super().__init__(options)
        self._shard = shard
        self._is_closed = False
        elsewhere = f"{shard.server.model} answers over gRPC, at {shard.server.address}; here is its health alone"
        with ExitStack() as stack:
            self._open_ports(stack, HealthApplication(shard.server.why_not_ready, elsewhere=elsewhere))
            gauges = PeriodicThread(
                lambda: metrics.show_model(shard.server.model, shard), every=GAUGE_SECONDS, name="serving-gauges"
            )
            gauges.start()
            stack.callback(gauges.close)
            self._opened = stack.pop_all()
        self._registered = ExitStack()
        if registration is not None:
            registering = PeriodicThread(
                partial(self._register, registration), every=_TRY_AGAIN_SECONDS, name="monolith-shard-registers"
            )
            registering.start()
            self._registered.callback(self._deregister, registration)
            self._registered.callback(registering.close)
        if options.host != LOOPBACK and not options.credentials().knows_callers:
            _log.warning("the shard on %s requires no token: any client that reaches it can query it", options.host)

    @property
    def grpc_port(self) -> int:
        """Port of gRPC."""
        return int(split_address(self._shard.server.address)[1])

    def close(self) -> None:
        """Drains admitted requests and shuts down. Idempotent.

        The shard is not ready and deregistered from the start of the call, keeps serving for `lame_duck_seconds`, then
        rejects new requests.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_request.set()
        self._shard.server.show_ending()
        self._registered.close()
        if self.options.lame_duck_seconds > 0:
            time.sleep(self.options.lame_duck_seconds)
        self._shard.close(self.options.drain_seconds)
        self._opened.close()

    # Internals

    def _register(self, registration: Registration) -> float | End:
        if not self._shard.is_ready:
            return _LOOK_SECONDS
        discovery, role, replica = registration
        address = _reached_at(self._shard.server.address)
        discovery.register(role, replica, address)
        _log.info("shard: registered as %s %d at %s", role, replica, address)
        return END

    def _deregister(self, registration: Registration) -> None:
        discovery, role, replica = registration
        try:
            discovery.deregister(role, replica, _reached_at(self._shard.server.address))
        except Exception as error:  # noqa: BLE001 - clients will notice the failed shard
            _log.warning("shard: cannot take back that it is %s %d: %s", role, replica, error)


def _reached_at(address: str) -> str:
    """Returns the address at which other machines reach a listening address."""
    host, port = split_address(address)
    return get_local_server_addr(int(port)) if host in _EVERYWHERE else address


class HealthApplication:
    """Answers ``/healthz`` and ``/readyz`` like a model server.

    `elsewhere` is the error message for other paths.
    """

    def __init__(self, why_not_ready: Callable[[], str | None], *, elsewhere: str) -> None:
        self._why_not_ready = why_not_ready
        self._elsewhere = elsewhere

    def begin(self, request: HttpRequest) -> HttpResponse:
        """Answers one request."""
        status, problem = self._respond(request)
        body = json.dumps({"status": "ok"} if problem is None else {"error": problem}).encode()
        return HttpResponse(status, body, closes=status not in (200, 503))  # a body may follow that is not read

    def answer(self, request: HttpRequest, reply: Reply) -> None:
        """Answers one request; the body is ignored."""
        reply(self.begin(request))

    def _respond(self, request: HttpRequest) -> tuple[int, str | None]:
        if request.path not in ("/healthz", "/readyz"):
            return 404, self._elsewhere
        if request.method not in ("GET", "HEAD"):
            return 405, f"{request.path[1:]} takes GET, got {request.method}"
        why = self._why_not_ready() if request.path == "/readyz" else None
        return (200, None) if why is None else (503, why)
