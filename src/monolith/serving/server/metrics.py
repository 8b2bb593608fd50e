"""The metrics of a server (``docs/how-to/serve.md``), for its Prometheus endpoint.

`TrafficWatch` compares recent traffic of models with a reference: rate of unknown ids, and mean score. Model threads
only record calls; a background thread evaluates them once a second.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import torch

from monolith import environment
from monolith.clock import Clock, SystemClock
from monolith.observe import METRIC_PREFIX_VARIABLE, MetricClient, MetricRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monolith.serving.promotion.gate import GateVerdict
    from monolith.serving.served_model import Prediction, ShownModel
    from monolith.serving.server.registry import ModelRegistry
    from monolith.serving.server.request_core import Compared

DEFAULT_PREFIX = "monolith.serving"
GAUGE_SECONDS = 1.0
"""Seconds from one measurement of the gauges to the next."""


class ServingMetrics:
    """Recorder of the metrics of a server. Thread-safe.

    Args:
        recorder: Recorder of the values; by default that of the process.
    """

    def __init__(self, recorder: MetricRecorder | None = None) -> None:
        prefix = environment.get(METRIC_PREFIX_VARIABLE) or DEFAULT_PREFIX
        self.client = MetricClient(prefix, recorder=recorder)
        """Client with the same prefix, for components with their own metrics."""
        self._watch = TrafficWatch()
        self._answers: dict[tuple[str, int], Callable[[float], None]] = {}
        self._timers: dict[tuple[str, str, str], Callable[[float], None]] = {}
        self._hit_rates: dict[str, Callable[[float], None]] = {}
        self._refusals = self.client.counter("refusals")

    def count_answer(self, model: str, signature: str, seconds: float, status: int) -> None:
        """Counts an answered request, successful or not.

        Args:
            model: Name of the model.
            signature: Name of the signature.
            seconds: Time from the arrival of the request to its answer.
            status: gRPC status; 0: success.
        """
        count = self._answers.get((model, status))
        if count is None:
            count = self.client.counter("requests", {"model_name": model, "code": status})
            self._answers[model, status] = count
        count(1)
        if status == 0:
            self._timer("serving_latency", model, signature)(seconds)

    def count_call(self, model: str, signature: str, seconds: float, prediction: Prediction) -> None:
        """Counts a call of a model, for one request or several."""
        self._watch.note(model, signature, prediction)
        self._timer("predict_latency", model, signature)(seconds)
        if prediction.num_ids:
            rate = self._hit_rates.get(model)
            if rate is None:
                rate = self._hit_rates[model] = self.client.timer("lookup_fid_hit_rate", {"name": model})
            rate(prediction.num_found / prediction.num_ids)

    def count_refusal(self) -> None:
        """Counts a rejected request."""
        self._refusals(1)

    def count_expired(self) -> None:
        """Counts a request that expired in the queue."""
        self.client.emit_counter("expired")

    def count_shadow(self, model: str, version: int, outcome: str) -> None:
        """Counts an answered request that was offered to the shadow: ``scored``, ``dropped`` or ``failed``."""
        self.client.emit_counter("shadow_requests", 1, {"model_name": model, "version": version, "outcome": outcome})

    def show_shadow(self, model: str, version: int, compared: Compared) -> None:
        """Records how the scores of a shadow differ in one request."""
        tags = {"model_name": model, "version": version}
        if compared.scores:
            self.client.emit_timer("shadow_difference", compared.difference / compared.scores, tags)
        if compared.not_finite:
            self.client.emit_counter("shadow_not_finite", compared.not_finite, tags)

    def count_verdict(self, model: str, kind: str, verdict: GateVerdict) -> None:
        """Counts a verdict of the gate on an export or dense weights."""
        tags = {"model_name": model, "kind": kind}
        if verdict.refused is not None:
            self.client.emit_counter("gate_refusals", 1, tags)
        self.client.emit_store("gate_auc", verdict.figures.auc, tags)
        self.client.emit_store("gate_calibration", verdict.figures.calibration, tags)

    def show_models(self, registry: ModelRegistry) -> None:
        """Emits size and freshness of each version."""
        for entry in registry.entries():
            self.show_model(entry.name, entry.model)

    def show_model(self, name: str, model: ShownModel) -> None:
        """Emits size and freshness of one model."""
        tags = {"model_name": name, "version": int(model.version.export)}
        self.client.emit_store("rows", model.num_rows, tags)
        self.client.emit_store("memory_bytes", model.memory_bytes, tags)
        self.client.emit_store("ready", float(model.is_ready), tags)
        staleness = model.staleness
        if staleness is not None:
            self.client.emit_store("staleness", staleness.now, tags)
            if not math.isnan(staleness.p50):
                self.client.emit_store("staleness_p50", staleness.p50, tags)
                self.client.emit_store("staleness_p99", staleness.p99, tags)

    def show_traffic(self) -> None:
        """Emits the drift of requests and answers."""
        self._watch.show(self.client)

    def show_queue(self, waiting: int, expected_wait_seconds: float) -> None:
        """Emits the state of the queue."""
        self.client.emit_store("queue_requests", waiting)
        self.client.emit_store("queue_wait", expected_wait_seconds)

    def _timer(self, name: str, model: str, signature: str) -> Callable[[float], None]:
        """Returns a cached timer for every request, so that name and tags are checked only once."""
        timer = self._timers.get((name, model, signature))
        if timer is None:
            timer = self.client.timer(name, {"model_name": model, "signature_name": signature})
            self._timers[name, model, signature] = timer
        return timer


WINDOW_SECONDS = 300.0
"""Length of the recent window."""
HALF_LIFE_SECONDS = 86_400.0
"""Half-life of answers in the reference: a day, so that hours of the day average out, and a sudden change is visible
for hours."""
_BUCKETS = 30
_MOST_RECORDED = 4096
"""Maximum number of recorded calls; the oldest are dropped if the background thread is stuck."""


class RecentMean:
    """Mean of the recent window, and exponentially weighted mean of earlier values. Not thread-safe.

    Times are arguments, in seconds, and must not decrease.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, float, float]] = deque()
        self._old_sum = self._old_count = 0.0
        self._decayed = 0.0

    def add(self, total: float, count: float, now: float) -> None:
        """Adds values."""
        self._leave(now)
        number = self._number(now)
        if self._buckets and self._buckets[-1][0] == number:
            _, before, counted = self._buckets.pop()
            self._buckets.append((number, before + total, counted + count))
        else:
            self._buckets.append((number, total, count))

    def mean(self, now: float) -> float | None:
        """Returns the mean of the recent window; None if it is empty."""
        self._leave(now)
        count = sum(counted for _, _, counted in self._buckets)
        return sum(total for _, total, _ in self._buckets) / count if count else None

    def reference(self, now: float) -> float | None:
        """Returns the mean of earlier values; None if there are none."""
        self._leave(now)
        return self._old_sum / self._old_count if self._old_count else None

    def _number(self, now: float) -> int:
        return math.floor(now * _BUCKETS / WINDOW_SECONDS)

    def _leave(self, now: float) -> None:
        oldest = self._number(now) - _BUCKETS
        while self._buckets and self._buckets[0][0] <= oldest:
            _, total, count = self._buckets.popleft()
            kept = 0.5 ** ((now - self._decayed) / HALF_LIFE_SECONDS)
            self._decayed = now
            self._old_sum = self._old_sum * kept + total
            self._old_count = self._old_count * kept + count


class TrafficWatch:
    """Monitor of the calls of all models. Any thread may call `note`; one thread calls `show`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._recorded: deque[tuple[str, str, Prediction]] = deque(maxlen=_MOST_RECORDED)
        """Model, signature and answer of each call."""
        self._unknown: dict[str, RecentMean] = {}
        self._scores: dict[tuple[str, str, str], RecentMean] = {}

    def note(self, model: str, signature: str, prediction: Prediction) -> None:
        """Records a call of a model."""
        self._recorded.append((model, signature, prediction))

    def show(self, client: MetricClient) -> None:
        """Evaluates the calls since the last time, and emits their metrics."""
        now = self._clock.monotonic()
        self._look_at_calls(now)
        for model, unknown in self._unknown.items():
            rate = unknown.mean(now)
            if rate is not None:
                client.emit_store("unknown_id_rate", rate, {"model_name": model})
        for (model, signature, output), scores in self._scores.items():
            mean, usual = scores.mean(now), scores.reference(now)
            tags = {"model_name": model, "signature_name": signature, "output": output}
            if mean is not None:
                client.emit_store("score_mean", mean, tags)
            if mean is not None and usual is not None:
                client.emit_store("score_reference", usual, tags)
                if usual > 0:
                    client.emit_store("calibration_drift", mean / usual, tags)

    def _look_at_calls(self, now: float) -> None:
        outputs: dict[tuple[str, str, str], list[Tensor]] = {}
        while self._recorded:
            model, signature, prediction = self._recorded.popleft()
            if prediction.num_ids:
                unknown = prediction.num_ids - prediction.num_found
                self._unknown.setdefault(model, RecentMean()).add(unknown, prediction.num_ids, now)
            for name, values in prediction.outputs.items():
                if _is_scores(values):
                    outputs.setdefault((model, signature, name), []).append(values)
        for key, scores in outputs.items():
            self._add_scores(key, scores, now)

    def _add_scores(self, key: tuple[str, str, str], parts: list[Tensor], now: float) -> None:
        """Adds the scores of several calls together; if any is not finite, adds them one by one without it."""
        values = torch.cat([part.reshape(-1) for part in parts])
        total = float(values.sum(dtype=torch.float64))
        if math.isfinite(total):
            self._scores.setdefault(key, RecentMean()).add(total, values.numel(), now)
        elif len(parts) > 1:
            for part in parts:
                self._add_scores(key, [part], now)


def _is_scores(values: Tensor) -> bool:
    """Returns whether an output has one score for each example."""
    return values.is_floating_point() and values.ndim > 0 and 0 < values.numel() == values.shape[0]
