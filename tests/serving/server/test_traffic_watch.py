"""Unknown ids and mean scores of the last minutes, against what was before them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from monolith.errors import NotFoundError
from monolith.observe import MetricClient, MetricRecorder
from monolith.serving.served_model import ModelVersion, Prediction
from monolith.serving.server.metrics import (
    HALF_LIFE_SECONDS,
    WINDOW_SECONDS,
    RecentMean,
    TrafficWatch,
)
from monolith.testing import FakeClock

TAGS = {"model_name": "ranker", "signature_name": "serving_default", "output": "predictions"}


class Watched:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.recorder = MetricRecorder()
        self.watch = TrafficWatch(self.clock)

    def call(self, scores: list[float], *, ids: int = 0, found: int = 0, **outputs: Any) -> None:
        made = Prediction({"predictions": torch.tensor(scores), **outputs}, ModelVersion(1, -1, {}), ids, found)
        self.watch.note("ranker", "serving_default", made)

    def value(self, name: str) -> float | None:
        self.watch.show(MetricClient("s", recorder=self.recorder))
        tags = {"model_name": "ranker"} if name == "unknown_id_rate" else TAGS
        return self.shown(name, tags)

    def shown(self, name: str, tags: dict[str, str]) -> float | None:
        try:
            return self.recorder.gauge(f"s.{name}", tags)
        except NotFoundError:
            return None


def test_the_rate_of_unknown_ids_is_that_of_all_ids_of_the_window() -> None:
    watched = Watched()
    watched.call([0.5], ids=90, found=90)
    watched.call([0.5], ids=10, found=5)
    assert watched.value("unknown_id_rate") == pytest.approx(0.05)
    watched.clock.advance(WINDOW_SECONDS + 60)
    watched.call([0.5], ids=4, found=1)
    assert watched.value("unknown_id_rate") == pytest.approx(0.75)


def test_scores_that_rise_are_a_drift_once_there_is_something_before_them() -> None:
    watched = Watched()
    watched.call([0.1, 0.3])
    assert watched.value("score_mean") == pytest.approx(0.2)
    assert watched.value("calibration_drift") is None
    watched.clock.advance(WINDOW_SECONDS + 60)
    watched.call([0.3])
    assert watched.value("score_reference") == pytest.approx(0.2)
    assert watched.value("calibration_drift") == pytest.approx(1.5)


def test_examples_count_alike_however_they_were_grouped_in_requests() -> None:
    watched = Watched()
    watched.call([0.0] * 3)
    watched.call([1.0])
    assert watched.value("score_mean") == pytest.approx(0.25)


def test_vectors_integers_and_broken_scores_are_no_scores() -> None:
    watched = Watched()
    watched.call([math.nan, 0.5])
    watched.call([], vector=torch.ones(2, 3), count=torch.ones(2, dtype=torch.int64), all=torch.tensor(3.0))
    assert watched.value("score_mean") is None
    watched.call([0.25], column=torch.tensor([[0.5], [1.0]]))
    assert watched.value("score_mean") == pytest.approx(0.25)
    assert watched.shown("score_mean", {**TAGS, "output": "column"}) == pytest.approx(0.75)
    assert watched.shown("score_mean", {**TAGS, "output": "vector"}) is None


def test_scores_around_zero_have_a_mean_and_no_ratio() -> None:
    watched = Watched()
    watched.call([-1.0])
    assert watched.value("score_mean") == pytest.approx(-1.0)
    watched.clock.advance(WINDOW_SECONDS + 60)
    watched.call([1.0])
    assert watched.value("score_reference") == pytest.approx(-1.0)
    assert watched.value("calibration_drift") is None


def test_the_usual_mean_decays_by_half_in_a_day() -> None:
    mean = RecentMean()
    mean.add(0.0, 100, 0.0)
    assert mean.reference(WINDOW_SECONDS + 60) == 0.0
    mean.add(100.0, 100, HALF_LIFE_SECONDS + WINDOW_SECONDS + 60)
    assert mean.reference(HALF_LIFE_SECONDS + 3 * WINDOW_SECONDS) == pytest.approx(2 / 3, rel=0.01)
    assert mean.mean(HALF_LIFE_SECONDS + 3 * WINDOW_SECONDS) is None


def test_a_slow_looker_costs_notes_and_no_memory() -> None:
    watched = Watched()
    for _ in range(10_000):
        watched.call([1.0])
    watched.call([0.0])
    value = watched.value("score_mean")
    assert value is not None
    assert 0 < value < 1
    assert len(watched.watch._recorded) == 0
