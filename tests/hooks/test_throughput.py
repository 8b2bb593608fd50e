"""Heartbeat and steps of a job as emitted metrics."""

from __future__ import annotations

import threading

import pytest

from hooks.sessions import FakeSession
from monolith.errors import NotFoundError
from monolith.hooks import HeartbeatHook, ThroughputMetricHook
from monolith.observe import MetricClient, MetricRecorder
from monolith.testing import FakeClock, StepLoop

TAGS = {"model_name": "ranker", "cluster_type": "tide"}


def test_the_heartbeat_is_sent_while_the_session_is_open_and_reports_when_it_stops() -> None:
    clock, recorder = FakeClock(now=1000), MetricRecorder()
    hook = HeartbeatHook(metrics=MetricClient("m", recorder=recorder), clock=clock)
    with StepLoop([hook]):
        assert recorder.gauge("m.training_heart_beat", {"type": "running"}) == 1000
        clock.advance(30)
        hook.beat()
        with pytest.raises(NotFoundError):
            recorder.gauge("m.training_heart_beat", {"type": "stopped"})
    assert recorder.gauge("m.training_heart_beat", {"type": "running"}) == 1030
    assert recorder.gauge("m.training_heart_beat", {"type": "stopped"}) == 1030


def test_a_thread_beats_and_ends_with_the_session_also_by_an_error() -> None:
    beats = threading.Semaphore(0)

    class Counting(MetricClient):
        def emit_store(self, name: str, value: float, tags: object = None) -> None:
            beats.release()

    with pytest.raises(ZeroDivisionError), StepLoop([HeartbeatHook(metrics=Counting("m"), every_secs=0.01)]) as loop:
        loop.run(lambda: [beats.acquire(timeout=20) for _ in range(4)] and 1 // 0)


def test_a_beat_that_fails_does_not_end_the_beating(caplog: pytest.LogCaptureFixture) -> None:
    beats = threading.Semaphore(0)

    class Failing(MetricClient):
        calls = 0

        def emit_store(self, name: str, value: float, tags: object = None) -> None:
            self.calls += 1
            beats.release()
            if self.calls == 2:
                raise ValueError("kind of the metric changed")

    with StepLoop([HeartbeatHook(metrics=Failing("m"), every_secs=0.01)]):
        assert all(beats.acquire(timeout=20) for _ in range(4))
    assert "thread training_heart_beat failed, next in 0.01 s: ValueError('kind" in caplog.text


def test_every_thirty_seconds_by_default() -> None:
    assert HeartbeatHook()._heart.every_seconds == 30
    with pytest.raises(ValueError, match="every_secs must be > 0, got 0"):
        HeartbeatHook(every_secs=0)


def test_steps_are_counted_at_most_every_thirty_seconds() -> None:
    clock, recorder, session = FakeClock(now=5000), MetricRecorder(), FakeSession(global_step=100)
    hook = ThroughputMetricHook(
        "ranker",
        cluster_type="tide",
        start_time_secs=4990,
        metrics=MetricClient("m", recorder=recorder),
        clock=clock,
    )
    for _ in range(70):
        hook.before_run(session.context())
        clock.advance(1)
        session.global_step += 2
        hook.after_run(session.context())
    assert recorder.timer("m.run_start_elapsed_time.all", TAGS).sum == 10
    assert recorder.counter("m.run_steps.all", TAGS) == 120
    elapsed = recorder.timer("m.run_steps_elapsed_time.all", TAGS)
    assert (elapsed.count, elapsed.mean) == (2, 0.5)
    hook.end(session)
    assert recorder.counter("m.run_steps.all", TAGS) == 140


def test_no_step_is_no_division_by_zero() -> None:
    clock, recorder, session = FakeClock(), MetricRecorder(), FakeSession(global_step=100)
    hook = ThroughputMetricHook("ranker", metrics=MetricClient("m", recorder=recorder), clock=clock)
    hook.end(session)  # it ended before its first step
    hook.before_run(session.context())
    clock.advance(100)
    hook.after_run(session.context())
    hook.end(session)
    assert recorder.read() == []


def test_steps_that_a_restore_took_back_are_not_counted_twice() -> None:
    clock, recorder, session = FakeClock(), MetricRecorder(), FakeSession(global_step=100)
    hook = ThroughputMetricHook("ranker", metrics=MetricClient("m", recorder=recorder), clock=clock)
    hook.before_run(session.context())
    session.global_step = 50
    clock.advance(100)
    hook.after_run(session.context())
    assert recorder.read() == []


def test_a_cluster_is_stable_unless_configured_otherwise() -> None:
    clock, recorder, session = FakeClock(), MetricRecorder(), FakeSession()
    hook = ThroughputMetricHook("ranker", metrics=MetricClient("m", recorder=recorder), clock=clock)
    hook.before_run(session.context())
    session.global_step = 3
    clock.advance(30)
    hook.after_run(session.context())
    assert recorder.counter("m.run_steps.all", {"model_name": "ranker", "cluster_type": "stable"}) == 3
