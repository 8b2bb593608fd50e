"""Compares recent traffic of models with a reference: rate of unknown ids, and mean score.

Model threads only record calls; a background thread evaluates them once a second.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.clock import SystemClock

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.clock import Clock
    from monolith.observe import MetricClient
    from monolith.serving.server.model import ServedPrediction

__all__ = ["RecentMean", "TrafficWatch"]

WINDOW_SECONDS = 300.0
"""Length of the recent window."""
HALF_LIFE_SECONDS = 86_400.0
"""Half-life of answers in the reference: a day, so that hours of the day average out, and a sudden change is visible
for hours."""
_BUCKETS = 30
_MOST_NOTED = 4096
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
        count = sum(each for _, _, each in self._buckets)
        return sum(each for _, each, _ in self._buckets) / count if count else None

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


class _Noted(NamedTuple):
    model: str
    signature: str
    prediction: ServedPrediction


class TrafficWatch:
    """Monitor of the calls of all models. Any thread may call `note`; one thread calls `show`.

    Args:
        clock: Measures the windows.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._noted: deque[_Noted] = deque(maxlen=_MOST_NOTED)
        self._unknown: dict[str, RecentMean] = {}
        self._scores: dict[tuple[str, str, str], RecentMean] = {}

    def note(self, model: str, signature: str, prediction: ServedPrediction) -> None:
        """Records a call of a model."""
        self._noted.append(_Noted(model, signature, prediction))

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
        while self._noted:
            model, signature, prediction = self._noted.popleft()
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
