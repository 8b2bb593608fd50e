"""`ShardService`: a shard as a process of its own, with what those who watch over it ask for."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Self

from monolith.cluster.addresses import get_local_server_addr, split_address
from monolith.observe import MetricsEndpoint
from monolith.serving.server.config import LOOPBACK
from monolith.serving.server.health_application import HealthApplication
from monolith.serving.server.http_front import HttpFront
from monolith.serving.server.metrics import GaugeThread
from monolith.stop_request import StopRequest

if TYPE_CHECKING:
    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.serving.server.config import ServerConfig
    from monolith.serving.server.metrics import ServingMetrics
    from monolith.serving.shards.served_shard import ServedShard

__all__ = ["Registration", "ShardService"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_TRY_AGAIN_SECONDS = 5.0
_EVERYWHERE = ("0.0.0.0", "::", "[::]")  # noqa: S104 - what is compared with, not what is listened on


class Registration(NamedTuple):
    """Where a shard makes itself known once it is ready."""

    discovery: ServiceDiscovery
    """Its owner closes it."""
    role: str
    replica: int
    """Its index there."""


class ShardService:
    """Health, readiness, metrics and discovery of a shard, until it is closed. A context manager.

    Args:
        shard: Answers already; it is closed with this.
        options: Where HTTP and metrics listen, whom they let in, and how it ends.
        metrics: What is shown.
        registration: Where it makes itself known; None: nowhere.

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
        self.options = options
        self._shard = shard
        self._metrics = metrics
        self._registration = registration
        self._stop_request = StopRequest()
        self._is_closed = False
        with ExitStack() as stack:
            self._endpoint = None
            if options.metrics_port is not None:
                self._endpoint = stack.enter_context(MetricsEndpoint(options.metrics_port, options.host))
            self._http = None
            if options.port is not None:
                sentence = (
                    f"{shard.server.model} answers over gRPC, at {shard.server.address}; here is its health alone"
                )
                self._http = HttpFront(HealthApplication(shard.server.why_not_ready, elsewhere=sentence), options)
                stack.callback(self._http.close)
            stack.callback(GaugeThread(self._show).close)
            self._opened = stack.pop_all()
        self._registering = None
        if registration is not None:
            self._registering = threading.Thread(target=self._register, name="monolith-shard-registers", daemon=True)
            self._registering.start()
        if options.host != LOOPBACK and not options.credentials().knows_callers:
            _log.warning("the shard on %s asks for no token: whoever reaches it can ask it", options.host)

    @property
    def port(self) -> int | None:
        """Of HTTP."""
        return None if self._http is None else self._http.port

    @property
    def grpc_port(self) -> int:
        """Of gRPC."""
        return int(split_address(self._shard.server.address)[1])

    @property
    def metrics_port(self) -> int | None:
        """Of Prometheus metrics."""
        return None if self._endpoint is None else self._endpoint.port

    def stop(self) -> None:
        """Lets `wait` return; safe in a handler of signals."""
        self._stop_request.set()

    def wait(self) -> None:
        """Returns when `stop` was called."""
        self._stop_request.wait()

    def close(self) -> None:
        """Answers what was taken in, and ends; a second call does nothing.

        It is not ready and not to be found from the first moment on, answers on for `lame_duck_seconds`, and then takes
        nothing in any more.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_request.set()
        self._shard.server.show_ending()
        if self._registering is not None:
            self._registering.join()
        if self.options.lame_duck_seconds > 0:
            time.sleep(self.options.lame_duck_seconds)
        self._shard.close(self.options.drain_seconds)
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _register(self) -> None:
        """Registers when it is ready, and takes that back when it is about to end."""
        if self._registration is None:
            return
        discovery, role, replica = self._registration
        address = _reached_at(self._shard.server.address)
        while not self._stop_request.is_set():
            if not self._shard.is_ready:
                self._stop_request.wait(_LOOK_SECONDS)
                continue
            try:
                discovery.register(role, replica, address)
                break
            except Exception as error:  # noqa: BLE001 - services have errors of their own
                _log.warning("shard: cannot register as %s %d now, and tries again: %s", role, replica, error)
                self._stop_request.wait(_TRY_AGAIN_SECONDS)
        else:
            return
        _log.info("shard: registered as %s %d at %s", role, replica, address)
        self._stop_request.wait()
        try:
            discovery.deregister(role, replica, address)
        except Exception as error:  # noqa: BLE001 - the same; those who ask find out by themselves
            _log.warning("shard: cannot take back that it is %s %d: %s", role, replica, error)

    def _show(self) -> None:
        try:
            self._metrics.show_model(self._shard.server.model, self._shard)
        except Exception:  # noqa: BLE001 - a metric that cannot be read stops nobody
            _log.exception("metrics of the shard could not be read")


def _reached_at(address: str) -> str:
    """Where others reach what listens there."""
    host, port = split_address(address)
    return get_local_server_addr(int(port)) if host in _EVERYWHERE else address
