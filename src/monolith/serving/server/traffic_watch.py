"""What models are asked about and what they answer lately, against what was usual: unknown ids and the mean score.

Calls are only noted by the threads that make them; they are looked at once a second, beside the requests.
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
    from monolith.serving.server.model import Prediction

__all__ = ["RecentMean", "TrafficWatch"]

WINDOW_SECONDS = 300.0
"""What counts as lately."""
HALF_LIFE_SECONDS = 86_400.0
"""After which an answer counts half in what is usual: a day, so that hours of the day even out, and so that a sudden
change is seen for hours."""
_BUCKETS = 30
_MOST_NOTED = 4096
"""Calls that wait to be looked at; older ones go, should the one who looks be stuck."""


class RecentMean:
    """The mean of the last minutes, and that of what was before them, the longer ago the less. Belongs to one thread.

    Time is handed in, in seconds, and does not go back.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, float, float]] = deque()
        self._old_sum = self._old_count = 0.0
        self._decayed = 0.0

    def add(self, total: float, count: float, now: float) -> None:
        """Counts some values."""
        self._leave(now)
        number = self._number(now)
        if self._buckets and self._buckets[-1][0] == number:
            _, before, counted = self._buckets.pop()
            self._buckets.append((number, before + total, counted + count))
        else:
            self._buckets.append((number, total, count))

    def mean(self, now: float) -> float | None:
        """Of the last minutes; None: there was nothing."""
        self._leave(now)
        count = sum(each for _, _, each in self._buckets)
        return sum(each for _, each, _ in self._buckets) / count if count else None

    def reference(self, now: float) -> float | None:
        """Of what was before; None: there was nothing."""
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
    prediction: Prediction


class TrafficWatch:
    """Watches the calls of all models. Any thread may `note`; one thread shows.

    Args:
        clock: Measures the windows.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._noted: deque[_Noted] = deque(maxlen=_MOST_NOTED)
        self._unknown: dict[str, RecentMean] = {}
        self._scores: dict[tuple[str, str, str], RecentMean] = {}

    def note(self, model: str, signature: str, prediction: Prediction) -> None:
        """A model was called."""
        self._noted.append(_Noted(model, signature, prediction))

    def show(self, client: MetricClient) -> None:
        """Looks at the calls since the last time, and emits what came of them."""
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
        """Counts scores of several calls, all at once unless one of them is broken: that one is left out."""
        values = torch.cat([part.reshape(-1) for part in parts])
        total = float(values.sum(dtype=torch.float64))
        if math.isfinite(total):
            self._scores.setdefault(key, RecentMean()).add(total, values.numel(), now)
        elif len(parts) > 1:
            for part in parts:
                self._add_scores(key, [part], now)


def _is_scores(values: Tensor) -> bool:
    """Whether an output has one score for each example."""
    return values.is_floating_point() and values.ndim > 0 and 0 < values.numel() == values.shape[0]
