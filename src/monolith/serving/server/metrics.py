"""What a server says about itself: the metrics of ``docs/how-to/serve.md``, for its endpoint of Prometheus."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from monolith import environment
from monolith.observe import MetricClient
from monolith.observe.metric_prefix import METRIC_PREFIX_VARIABLE
from monolith.serving.server.traffic_watch import TrafficWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.observe import MetricRecorder
    from monolith.serving.promotion.gate import Verdict
    from monolith.serving.server.model import Prediction, ShownModel
    from monolith.serving.server.registry import ModelRegistry
    from monolith.serving.server.shadow import Compared

__all__ = ["GaugeThread", "ServingMetrics"]

DEFAULT_PREFIX = "monolith.serving"
_EVERY_SECONDS = 1.0


class ServingMetrics:
    """Counts what happens. Any thread may call any method.

    Args:
        recorder: Where values go; by default the recorder of the process.
    """

    def __init__(self, recorder: MetricRecorder | None = None) -> None:
        prefix = environment.get(METRIC_PREFIX_VARIABLE) or DEFAULT_PREFIX
        self._client = MetricClient(prefix, recorder=recorder)
        self._watch = TrafficWatch()
        self._answers: dict[tuple[str, int], Callable[[float], None]] = {}
        self._timers: dict[tuple[str, str, str], Callable[[float], None]] = {}
        self._hit_rates: dict[str, Callable[[float], None]] = {}
        self._refusals = self._client.counter("refusals")

    @property
    def client(self) -> MetricClient:
        """Emits under the same prefix, for parts that count by themselves."""
        return self._client

    def count_answer(self, model: str, signature: str, seconds: float, status: int) -> None:
        """A request was answered, well or not.

        Args:
            model: Its name.
            signature: Its name.
            seconds: From the moment the request was there to that of its answer.
            status: Of gRPC; 0 is well.
        """
        count = self._answers.get((model, status))
        if count is None:
            count = self._client.counter("requests", {"model_name": model, "code": status})
            self._answers[model, status] = count
        count(1)
        if status == 0:
            self._timer("serving_latency", model, signature)(seconds)

    def count_call(self, model: str, signature: str, seconds: float, prediction: Prediction) -> None:
        """A model was called, for one request or several."""
        self._watch.note(model, signature, prediction)
        self._timer("predict_latency", model, signature)(seconds)
        if prediction.num_ids:
            rate = self._hit_rates.get(model)
            if rate is None:
                rate = self._hit_rates[model] = self._client.timer("lookup_fid_hit_rate", {"name": model})
            rate(prediction.num_found / prediction.num_ids)

    def count_refusal(self) -> None:
        """A request was not taken in."""
        self._refusals(1)

    def count_expired(self) -> None:
        """A request waited past its deadline."""
        self._client.emit_counter("expired")

    def count_shadow(self, model: str, version: int, outcome: str) -> None:
        """An answered request came to the shadow: it was ``scored``, ``dropped`` or ``failed``."""
        self._client.emit_counter("shadow_requests", 1, {"model_name": model, "version": version, "outcome": outcome})

    def show_shadow(self, model: str, version: int, compared: Compared) -> None:
        """How the scores of a shadow differ in one request."""
        tags = {"model_name": model, "version": version}
        if compared.scores:
            self._client.emit_timer("shadow_difference", compared.difference / compared.scores, tags)
        if compared.not_finite:
            self._client.emit_counter("shadow_not_finite", compared.not_finite, tags)

    def count_verdict(self, model: str, kind: str, verdict: Verdict) -> None:
        """The gate judged an export or dense weights."""
        tags = {"model_name": model, "kind": kind}
        if verdict.refused is not None:
            self._client.emit_counter("gate_refusals", 1, tags)
        self._client.emit_store("gate_auc", verdict.figures.auc, tags)
        self._client.emit_store("gate_calibration", verdict.figures.calibration, tags)

    def show_models(self, registry: ModelRegistry) -> None:
        """What each version holds and how fresh it is."""
        for entry in registry.entries():
            self.show_model(entry.name, entry.model)

    def show_model(self, name: str, model: ShownModel) -> None:
        """What one model holds and how fresh it is."""
        tags = {"model_name": name, "version": int(model.version.export)}
        self._client.emit_store("rows", model.num_rows, tags)
        self._client.emit_store("memory_bytes", model.memory_bytes, tags)
        self._client.emit_store("ready", float(model.is_ready), tags)
        staleness = model.staleness
        if staleness is not None:
            self._client.emit_store("staleness", staleness.now, tags)
            if not math.isnan(staleness.p50):
                self._client.emit_store("staleness_p50", staleness.p50, tags)
                self._client.emit_store("staleness_p99", staleness.p99, tags)

    def show_traffic(self) -> None:
        """How usual it is what models are asked and answer."""
        self._watch.show(self._client)

    def show_queue(self, waiting: int, expected_wait_seconds: float) -> None:
        """How full the queue is."""
        self._client.emit_store("queue_requests", waiting)
        self._client.emit_store("queue_wait", expected_wait_seconds)

    def _timer(self, name: str, model: str, signature: str) -> Callable[[float], None]:
        """One that measures every request: looked up by what it differs in, its name and tags are checked once."""
        found = self._timers.get((name, model, signature))
        if found is None:
            found = self._client.timer(name, {"model_name": model, "signature_name": signature})
            self._timers[name, model, signature] = found
        return found


class GaugeThread:
    """Calls a function every second until closed."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serving-gauges", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._show()
            if self._ended.wait(_EVERY_SECONDS):
                return
