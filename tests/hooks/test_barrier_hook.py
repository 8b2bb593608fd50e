"""Workers wait at the barrier, and a save waits for them."""

from __future__ import annotations

import logging
import threading

import pytest

from hooks.sessions import FakeSession
from monolith.cluster import BarrierOp
from monolith.hooks import BarrierHook, BarrierSaverListener
from monolith.testing import FakeClock, StepLoop


def test_a_worker_stops_before_its_next_step_and_resumes() -> None:
    clock = FakeClock(blocking=True)
    barrier = BarrierOp(2, clock=clock)
    steps: list[int] = []

    def train() -> None:
        with StepLoop([BarrierHook(1, barrier)]) as loop:
            for number in range(3):
                loop.run(lambda number=number: steps.append(number))  # type: ignore[misc]

    barrier.place_barrier()
    worker = threading.Thread(target=train)
    worker.start()
    clock.wait_for_sleepers(1)
    assert barrier.get_blocked_indices() == [0, 1]
    assert steps == []
    barrier.remove_barrier()
    clock.advance(1)
    worker.join(20)
    assert steps == [0, 1, 2]
    assert barrier.is_none_blocked()


def test_the_chief_passes() -> None:
    barrier = BarrierOp(2)
    barrier.place_barrier()
    BarrierHook(0, barrier).before_run(FakeSession().context())
    assert barrier.get_blocked_indices() == [0]


def test_a_stop_lets_a_worker_end() -> None:
    barrier = BarrierOp(2)
    barrier.place_barrier()
    session = FakeSession()
    session.request_stop()
    BarrierHook(1, barrier).before_run(session.context())
    assert barrier.get_blocked_indices() == [0]


def test_an_index_beyond_the_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"index must be in \[0, 2\), got 2"):
        BarrierHook(2, BarrierOp(2))


def test_a_save_begins_when_the_worker_has_come() -> None:
    class WorkerComes(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(min(seconds, 3))
            assert barrier.enter(1) == "Save"

    waited = WorkerComes()
    barrier = BarrierOp(2, clock=waited)
    listener = BarrierSaverListener(barrier)
    session = FakeSession()
    listener.before_save(session, 7)
    assert waited.monotonic() == 3
    assert barrier.is_all_blocked()
    listener.after_save(session, 7)
    assert barrier.is_barrier_removed()


def test_a_save_proceeds_without_a_worker_that_does_not_arrive(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    barrier = BarrierOp(3, clock=clock)
    barrier.enter(2)
    listener = BarrierSaverListener(barrier)
    listener.before_save(FakeSession(), 7)
    assert clock.monotonic() == pytest.approx(30, abs=0.2)
    assert "saving at step 7 without workers [1]" in caplog.text


def test_a_barrier_of_an_operator_stays_after_a_save(caplog: pytest.LogCaptureFixture) -> None:
    barrier = BarrierOp(1)
    barrier.place_barrier("Stop")
    listener = BarrierSaverListener(barrier)
    with caplog.at_level(logging.INFO):
        listener.before_save(FakeSession(), 7)
        listener.after_save(FakeSession(), 7)
    assert barrier.is_barrier_placed()
    assert "with a barrier that is already placed" in caplog.text
