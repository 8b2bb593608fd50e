"""A shadow scores what others answered; it delays nothing and spoils nothing."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from monolith.serving.server import ModelRegistry, ModelServer, RequestQueueConfig
from monolith.serving.server import request_core as shadow_module
from monolith.serving.server.registry import Choice
from monolith.testing import SmallModel
from serving.server.promoted_models import PATIENCE, wait_until
from serving.server.test_rest import ONE, PATH, ask


class Shadowed:
    """A server with version 7 that answers and version 8 that scores beside it."""

    def __init__(self) -> None:
        self.registry = ModelRegistry()
        self.shadow = SmallModel(export=8)
        self.registry.add("ranker", SmallModel(export=7))
        self.registry.add("ranker", self.shadow)
        self.registry.set_label("ranker", "stable", 7)
        self.registry.set_shadow("ranker", Choice(version=8))
        self.server = ModelServer(self.registry, metrics_port=0, queue=RequestQueueConfig(max_wait_seconds=60.0))

    def tally(self) -> dict[str, Any]:
        found = self.registry.shadow_tallies.get("ranker")
        return {} if found is None else found.to_json()

    def ask(self, **headers: str) -> Any:
        reply = ask(self.server, PATH, ONE, **headers)
        assert (reply.status, reply.body) == (200, {"predictions": [3.5]})
        return reply


@pytest.fixture
def shadowed() -> Iterator[Shadowed]:
    made = Shadowed()
    yield made
    made.server.close()
    made.registry.close()


def answers(model: SmallModel, values: list[float]) -> None:
    model._score = lambda inputs: torch.tensor(values)  # type: ignore[method-assign]


def test_differences_are_counted(shadowed: Shadowed) -> None:
    answers(shadowed.shadow, [4.0])
    for _ in range(3):
        shadowed.ask()
    wait_until(lambda: shadowed.tally().get("requests") == 3)
    answers(shadowed.shadow, [float("nan")])
    shadowed.ask()
    wait_until(lambda: shadowed.tally().get("requests") == 4)
    assert shadowed.tally() == {
        "scoring_version": 8,
        "requests": 4,
        "dropped": 0,
        "failed": 0,
        "scores": 3,
        "not_finite": 1,
        "mean_absolute_difference": 0.5,
    }
    metrics = ask_metrics(shadowed.server)
    tags = 'model_name="ranker"'
    assert any(
        "shadow_requests" in line and 'outcome="scored"' in line and tags in line for line in metrics.splitlines()
    )
    assert "monolith_serving_shadow_difference_sum" in metrics
    assert "monolith_serving_shadow_not_finite" in metrics


def ask_metrics(server: ModelServer) -> str:
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return str(response.read().decode())


def test_a_shadow_that_raises_or_answers_another_shape_fails_alone(shadowed: Shadowed) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    shadowed.shadow.before = fail
    shadowed.ask()
    wait_until(lambda: shadowed.tally().get("failed") == 1)
    shadowed.shadow.before = lambda: None
    answers(shadowed.shadow, [1.0, 2.0, 3.0])
    shadowed.ask()
    wait_until(lambda: shadowed.tally().get("failed") == 2)
    assert shadowed.tally()["requests"] == 0


def test_a_shadow_that_hangs_delays_no_answer_and_skips_what_it_cannot_accept(
    shadowed: Shadowed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_module, "MOST_WAITING", 2)
    begun, release = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert release.wait(PATIENCE)

    shadowed.shadow.before = hang
    shadowed.ask()
    assert begun.wait(PATIENCE)
    for _ in range(6):
        shadowed.ask()  # answered while the shadow hangs; two wait, four are left out
    wait_until(lambda: shadowed.tally().get("dropped") == 4)
    release.set()
    wait_until(lambda: shadowed.tally().get("requests") == 3)
    assert shadowed.registry.entries("ranker")[1].users == 0


def test_examples_that_wait_are_bounded(shadowed: Shadowed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "MOST_EXAMPLES", 0)
    shadowed.ask()
    wait_until(lambda: shadowed.tally().get("dropped") == 1)


def test_what_the_shadow_itself_answers_is_not_scored_again(shadowed: Shadowed) -> None:
    reply = ask(shadowed.server, "/v1/models/ranker/versions/8:predict", ONE)
    assert reply.status == 200
    shadowed.ask()
    wait_until(lambda: shadowed.tally().get("requests") == 1)
    assert shadowed.shadow.calls == [1, 1]


def test_a_shadow_that_ended_scores_nothing(shadowed: Shadowed) -> None:
    shadowed.registry.set_shadow("ranker", None)
    shadowed.ask()
    shadowed.server.close()
    assert shadowed.shadow.calls == []
    shadowed.registry.remove("ranker", 8)
    wait_until(shadowed.shadow.closed.is_set)
