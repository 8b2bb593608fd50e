"""Metrics on Prometheus: a collector for any registry, and an endpoint to scrape.

Names lose their dots: ``monolith.training.run_steps.all`` is ``monolith_training_run_steps_all_total``. Counters end in
``_total``, timers are histograms, stores are gauges; tags are labels. Needs ``monolith-torch[prometheus]``.
"""

from __future__ import annotations

import importlib
import socket
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from monolith.closing import Closing
from monolith.errors import UnavailableError
from monolith.observe.metric_recorder import MetricKind, TimerReading, exposition_name, family_name, process_recorder
from monolith.observe.process_resources import share_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry, Metric

    from monolith.observe.metric_recorder import MetricRecorder, MetricSample

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
    """Returns a listening server; `serve_forever` answers."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = type("_Server", (_BoundedServer,), {"address_family": family})
    return make_server(str(address[0]), port, application, kind, handler_class=_SilentHandler)


_TYPES = {MetricKind.COUNTER: "counter", MetricKind.TIMER: "histogram", MetricKind.GAUGE: "gauge"}


class PrometheusCollector:
    """Shows what a recorder holds to a registry: ``registry.register(PrometheusCollector())``.

    Args:
        recorder: What to show; by default the recorder of the process.
    """

    def __init__(self, recorder: MetricRecorder | None = None) -> None:
        self._client = _import_prometheus_client()
        self._recorder = process_recorder() if recorder is None else recorder

    def describe(self) -> list[Metric]:
        """Returns no metric: names depend on what is emitted."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Returns one family per metric, with a sample for every set of tags."""
        families: dict[str, Metric] = {}
        for reading in self._recorder.read():
            family = families.get(reading.name)
            if family is None:
                spelt = family_name(reading.name, reading.kind)
                family = families[reading.name] = self._client.Metric(spelt, reading.name, _TYPES[reading.kind])
            _add_samples(family, reading)
        yield from families.values()


class MetricsEndpoint(Closing):
    """Serves ``GET /metrics`` until closed; a context manager.

    Args:
        port: 0 takes a free one; see `port` afterwards.
        address: Interface to listen on. Only this machine by default; ``0.0.0.0`` or ``::`` for all.
        recorder: What to show; by default the recorder of the process.
        registry: Registry to serve, to which the recorder is added until the endpoint is closed; by default one of its
            own. ``prometheus_client.REGISTRY`` shows memory and CPU of the process as well.

    Raises:
        UnavailableError: Port or address cannot be listened on.
    """

    def __init__(
        self,
        port: int = 0,
        address: str = "127.0.0.1",
        *,
        recorder: MetricRecorder | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        client = _import_prometheus_client()
        self._registry = client.CollectorRegistry() if registry is None else registry
        self._collector = PrometheusCollector(recorder)
        self._lock = threading.Lock()
        self._closed = False
        self._registry.register(self._collector)
        try:
            self._server = bounded_server(client.make_wsgi_app(self._registry), address, port)
        except OSError as error:
            self._registry.unregister(self._collector)
            raise UnavailableError(
                f"metrics endpoint: cannot listen on {address!r} port {port}: {error}; choose another port, or 0"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name=f"metrics-endpoint-{self.port}", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stops serving and frees the port; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._registry.unregister(self._collector)


def _add_samples(family: Metric, reading: MetricSample) -> None:
    labels = {exposition_name(tag): value for tag, value in reading.tags.items()}
    value = reading.value
    if isinstance(value, TimerReading):
        for bound, count in value.buckets:
            le = "+Inf" if bound == float("inf") else repr(bound)
            family.add_sample(f"{family.name}_bucket", {**labels, "le": le}, count)
        family.add_sample(f"{family.name}_count", labels, value.count)
        family.add_sample(f"{family.name}_sum", labels, value.sum)
    else:
        suffix = "_total" if reading.kind is MetricKind.COUNTER else ""
        family.add_sample(family.name + suffix, labels, value)


def _import_prometheus_client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ModuleNotFoundError as error:
        message = "metrics on Prometheus need prometheus_client, which is not installed; run: "
        raise ModuleNotFoundError(message + "pip install 'monolith-torch[prometheus]'", name=error.name) from error
