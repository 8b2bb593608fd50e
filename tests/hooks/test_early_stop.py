"""Training ends when a value gets no better."""

from __future__ import annotations

import math
from typing import Any

import pytest

from monolith.hooks import EarlyStop, EarlyStoppingHook
from monolith.testing import StepLoop


def stops_at(values: list[float], **options: Any) -> int | None:
    stop = EarlyStop(**options)
    return next((step for step, value in enumerate(values) if stop.update(step, value)), None)


def test_lower_is_better() -> None:
    assert stops_at([5, 4, 3, 3, 3, 2], patience_steps=2) == 4
    assert stops_at([5, 4, 3, 3, 2, 2, 1], patience_steps=2) is None


def test_higher_is_better() -> None:
    assert stops_at([0.5, 0.6, 0.6, 0.55], patience_steps=2, better="higher") == 3
    assert stops_at([0.5, 0.6, 0.61, 0.62], patience_steps=2, better="higher") is None


def test_a_little_better_does_not_count() -> None:
    assert stops_at([1.0, 0.95, 0.91, 0.89], patience_steps=2, min_delta=0.1) == 2
    assert stops_at([1.0, 0.95, 0.85], patience_steps=2, min_delta=0.1) is None


def test_nan_is_never_better_and_never_the_best() -> None:
    assert stops_at([math.nan, math.nan, math.nan], patience_steps=2) == 2
    stop = EarlyStop(patience_steps=5)
    for step, value in enumerate([math.nan, 1.0, math.nan]):
        assert not stop.update(step, value)
    assert (stop.best, stop.best_step) == (1.0, 1)


def test_infinities_are_values() -> None:
    assert stops_at([math.inf, 1.0, math.inf, math.inf], patience_steps=2) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patience_steps": 0}, "patience_steps must be >= 1, got 0"),
        ({"patience_steps": 1, "better": "lowest"}, "better must be 'lower' or 'higher', got 'lowest'"),
        ({"patience_steps": 1, "min_delta": -1.0}, "min_delta must be finite and >= 0, got -1.0"),
        ({"patience_steps": 1, "min_delta": math.nan}, "min_delta must be finite and >= 0, got nan"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EarlyStop(**options)


def test_the_hook_evaluates_periodically_and_stops() -> None:
    asked: list[int] = []

    def evaluate(session: Any) -> float | None:
        asked.append(session.global_step)
        return None if session.global_step <= 10 else 1.0

    hook = EarlyStoppingHook(evaluate, EarlyStop(patience_steps=15), every_steps=10)
    with StepLoop([hook]) as loop:
        while not loop.stop_requested:
            loop.run(lambda: None)
    assert asked == [10, 20, 30, 40]
    asked.clear()
    hook = EarlyStoppingHook(evaluate, EarlyStop(patience_steps=1000))
    with StepLoop([hook]) as loop:
        while not loop.stop_requested:
            loop.run(lambda: None)
    assert asked == [1000, 2000], "every 1,000 steps unless told otherwise"
