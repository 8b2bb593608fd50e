"""A model server: front ends, queue, model threads and metrics in one process."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from monolith.background import PeriodicThread
from monolith.closing import Closing
from monolith.config import keywords_of
from monolith.observe import MetricsEndpoint
from monolith.serving.request_log import RequestLog
from monolith.serving.server.config import LOOPBACK, ServerConfig
from monolith.serving.server.http.front import HttpFront
from monolith.serving.server.http.rest import RestApplication
from monolith.serving.server.metrics import GAUGE_SECONDS, ServingMetrics
from monolith.serving.server.model_threads import ModelThreads
from monolith.serving.server.request_core import RequestDispatcher
from monolith.stop_request import StopRequest

if TYPE_CHECKING:
    from monolith.serving.server.http.message import HttpApplication
    from monolith.serving.server.registry import ModelRegistry

_log = logging.getLogger(__name__)


class ServerProcess(Closing):
    """The ports of a server that are not gRPC's, and its stop request. A context manager."""

    _http: HttpFront | None = None
    _metrics_endpoint: MetricsEndpoint | None = None

    def __init__(self, options: ServerConfig) -> None:
        self.options = options
        self._stop_request = StopRequest()

    @property
    def port(self) -> int | None:
        """Port of HTTP, or None."""
        return None if self._http is None else self._http.port

    @property
    def metrics_port(self) -> int | None:
        """Port of Prometheus metrics, or None."""
        return None if self._metrics_endpoint is None else self._metrics_endpoint.port

    def stop(self) -> None:
        """Makes `wait` return; may be called in a signal handler."""
        self._stop_request.set()

    def wait(self) -> None:
        """Waits until `stop` is called."""
        self._stop_request.wait()

    def _open_ports(self, stack: ExitStack, application: HttpApplication) -> None:
        """Opens the ports of the configuration; `stack` closes them."""
        if self.options.metrics_port is not None:
            endpoint = MetricsEndpoint(self.options.metrics_port, self.options.host)
            self._metrics_endpoint = stack.enter_context(endpoint)
        if self.options.port is not None:
            self._http = HttpFront(application, self.options)
            stack.callback(self._http.close)


class ModelServer(ServerProcess):
    """Server of the models of a registry, from its construction until `close`. A context manager.

    Example::

        registry = ModelRegistry()
        registry.add("ranker", Predictor("models/ranker/export"))
        with ModelServer(registry, port=8501, grpc_port=8500) as server:
            server.wait()

    Args:
        registry: The models; owned by the caller, may change while serving.
        options: The fields of `ServerConfig`, by name.

    Raises:
        UnavailableError: a port is taken.
    """

    @keywords_of(ServerConfig)
    def __init__(self, registry: ModelRegistry, options: ServerConfig) -> None:
        super().__init__(options)
        self._closed = False
        self._lock = threading.Lock()
        credentials = options.credentials()
        metrics = ServingMetrics()
        with ExitStack() as stack:
            log = None if options.request_log is None else RequestLog(options.request_log, metrics=metrics.client)
            if log is not None:
                stack.callback(log.close)  # after the threads, which still answer
            self._threads = ModelThreads(options.queue, metrics=metrics)
            stack.callback(self._threads.close)
            self.core = RequestDispatcher(registry, self._threads, limits=options.limits, metrics=metrics)
            """Entry point for custom front ends."""
            self.core.request_log = log
            stack.callback(self.core.shadow.close)
            application = RestApplication(self.core, credentials)
            stack.callback(application.close)
            self._open_ports(stack, application)
            self._grpc = self._start_grpc(stack)
            gauges = PeriodicThread(self._show_gauges, every=GAUGE_SECONDS, name="serving-gauges")
            gauges.start()
            stack.callback(gauges.close)
            self._opened = stack.pop_all()
        if options.host != LOOPBACK and not credentials.knows_callers:
            _log.warning(
                "the server on %s requires no token: any client that reaches it can query its models", options.host
            )

    @property
    def grpc_port(self) -> int | None:
        """Port of gRPC, or None."""
        return None if self._grpc is None else int(self._grpc.port)

    def close(self) -> None:
        """Drains admitted requests and shuts down. Idempotent.

        The server is not ready from the start of the call, keeps serving for `lame_duck_seconds`, then rejects new
        requests.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.core.is_ending = True
        if self._grpc is not None:
            self._grpc.show_ending()
        if self.options.lame_duck_seconds > 0:
            time.sleep(self.options.lame_duck_seconds)
        if not self._threads.drain(self.options.drain_seconds):
            _log.warning("requests were not answered within %g s of draining", self.options.drain_seconds)
        self._opened.close()

    def _start_grpc(self, stack: ExitStack) -> Any:
        if self.options.grpc_port is None:
            return None
        from monolith.serving.server.grpc_service import GrpcFront  # noqa: PLC0415 - gRPC is imported where it is used

        front = GrpcFront(self.core, self.options)
        stack.callback(front.close)
        return front

    def _show_gauges(self) -> None:
        self.core.metrics.show_models(self.core.registry)
        self.core.metrics.show_traffic()
        self.core.metrics.show_queue(self._threads.num_waiting, self._threads.expected_wait_seconds)
