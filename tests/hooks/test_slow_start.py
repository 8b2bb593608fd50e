"""A worker waits for the others, but not forever."""

from __future__ import annotations

import logging
import random

import pytest

from hooks.sessions import FakeSession, SleepCalls
from monolith.hooks import CustomGlobalStepWaiterHook, slow_start_step


def waiter(step: int, clock: SleepCalls, minutes: float = 10, extra: float = 0) -> CustomGlobalStepWaiterHook:
    return CustomGlobalStepWaiterHook(
        step, clock=clock, max_non_tide_wait_minute=minutes, extra_wait_seconds=lambda: extra
    )


def test_not_wait_for_step_zero() -> None:
    clock = SleepCalls()
    waiter(0, clock).before_run(FakeSession().context())
    waiter(-3, clock).before_run(FakeSession().context())
    assert clock.sleeps == []


def test_not_wait_if_tide_not_available() -> None:
    clock, session = SleepCalls(), FakeSession()
    hook = CustomGlobalStepWaiterHook(
        10, clock=clock, tide_start_hour=3, tide_start_minute=0, tide_end_hour=5, tide_end_minute=0
    )
    hook.before_run(session.context())  # the clock stands at midnight
    assert clock.sleeps == []
    assert session.stop_requested


def test_wait_for_step() -> None:
    session = FakeSession()

    def train_elsewhere() -> None:
        session.global_step += 5

    clock = SleepCalls(train_elsewhere)
    hook = waiter(10, clock)
    hook.before_run(session.context())
    assert clock.sleeps == [0.5, 0.5]
    session.global_step = 0
    hook.before_run(session.context())  # it has started, and starts once
    assert len(clock.sleeps) == 2


def test_it_starts_anyway_when_the_others_are_slow(caplog: pytest.LogCaptureFixture) -> None:
    session = FakeSession(global_step=2)
    clock = SleepCalls()
    with caplog.at_level(logging.INFO):
        waiter(10, clock, minutes=1, extra=30).before_run(session.context())
    assert clock.monotonic() == 90.5, "the first look behind 60 s and 30 s"
    assert "starting at step 2 without waiting for step 10 any longer" in caplog.text
    assert caplog.messages.count("waiting for step 10 before training; the job is at 2") == 4, "every 30 s"


@pytest.mark.parametrize("chance", [0.0, 599.5])
def test_by_default_it_waits_ten_minutes_and_up_to_ten_more_by_chance(
    monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    bounds: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        bounds.append((low, high))
        return chance

    monkeypatch.setattr(random, "uniform", draw)
    clock = SleepCalls()
    CustomGlobalStepWaiterHook(10, clock=clock).before_run(FakeSession(global_step=2).context())
    assert bounds == [(0, 600)]
    assert clock.monotonic() == 600 + chance + 0.5


def test_patience_begins_with_the_second_step_of_the_job() -> None:
    session = FakeSession(global_step=1)
    begins_after = 5000

    def somebody_begins() -> None:
        if len(clock.sleeps) == begins_after:
            session.global_step = 2

    clock = SleepCalls(somebody_begins)
    waiter(10, clock, minutes=1).before_run(session.context())
    assert clock.monotonic() == begins_after * 0.5 + 60.5


def test_a_stop_ends_the_wait() -> None:
    session = FakeSession()
    clock = SleepCalls(session.request_stop)
    waiter(10, clock).before_run(session.context())
    assert len(clock.sleeps) == 1


def test_the_window_may_close_during_the_wait() -> None:
    session = FakeSession()
    clock = SleepCalls()
    hook = CustomGlobalStepWaiterHook(
        10, clock=clock, tide_start_hour=0, tide_start_minute=0, tide_end_hour=0, tide_end_minute=2
    )
    hook.before_run(session.context())
    assert session.stop_requested
    assert clock.monotonic() == 120


def test_workers_start_by_the_logarithm_of_their_index() -> None:
    assert [slow_start_step(100, index) for index in range(4)] == [0, 69, 109, 138]
