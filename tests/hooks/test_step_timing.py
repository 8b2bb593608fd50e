"""Speed of training in the log."""

from __future__ import annotations

import logging

import pytest
import torch

from hooks.sessions import FakeSession
from monolith.hooks import StepCounterHook, StepRate
from monolith.testing import FakeClock
from monolith.train import StepResult


def train(hook: StepCounterHook, session: FakeSession, clock: FakeClock, steps: int, seconds: float) -> None:
    for _ in range(steps):
        clock.advance(seconds)
        session.global_step += 1
        hook.after_run(session.context())


def test_every_hundred_steps_by_default(caplog: pytest.LogCaptureFixture) -> None:
    clock, session = FakeClock(), FakeSession(global_step=1000)
    hook = StepCounterHook(clock=clock)
    hook.after_create_session(session)
    with caplog.at_level(logging.INFO):
        train(hook, session, clock, 250, 0.5)
    assert [record.getMessage() for record in caplog.records] == ["step 1100, 2 steps/s", "step 1200, 2 steps/s"]


def test_examples_and_loss_of_the_session() -> None:
    clock, session = FakeClock(), FakeSession(last=StepResult(torch.tensor(0.25), None, None, num_examples=64))
    reports: list[StepRate] = []
    hook = StepCounterHook(every_steps=10, report=reports.append, clock=clock)
    hook.after_create_session(session)
    train(hook, session, clock, 10, 0.25)
    train(hook, session, clock, 10, 0.5)
    assert reports == [StepRate(10, 4.0, 256.0, 0.25), StepRate(20, 2.0, 128.0, 0.25)]
    assert str(reports[0]) == "step 10, loss 0.25, 4 steps/s, 256 examples/s"


def test_by_seconds_and_with_steps_of_other_workers() -> None:
    clock, session = FakeClock(), FakeSession()
    reports: list[StepRate] = []
    hook = StepCounterHook(every_secs=10, report=reports.append, clock=clock)
    hook.after_create_session(session)
    for _ in range(3):
        clock.advance(5)
        session.global_step += 20
        hook.after_run(session.context())
    assert [(rate.global_step, rate.steps_per_second) for rate in reports] == [(40, 4.0)]


def test_a_rebuilt_session_counts_from_scratch() -> None:
    clock, session = FakeClock(), FakeSession()
    reports: list[StepRate] = []
    hook = StepCounterHook(every_steps=10, report=reports.append, clock=clock)
    hook.after_create_session(session)
    train(hook, session, clock, 9, 1)
    clock.advance(1000)
    session.global_step = 5
    hook.after_create_session(session)
    train(hook, session, clock, 10, 1)
    assert [(rate.global_step, rate.steps_per_second) for rate in reports] == [(15, 1.0)]


def test_a_clock_that_stands_still_is_no_error() -> None:
    clock, session = FakeClock(), FakeSession()
    reports: list[StepRate] = []
    hook = StepCounterHook(every_steps=1, report=reports.append, clock=clock)
    hook.after_create_session(session)
    train(hook, session, clock, 3, 0)
    assert reports == []
