"""Between two steps, and only there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from monolith.errors import CancelledError, FailedPreconditionError
from monolith.hooks.server import StepGate


def in_thread(call: Callable[[], object], name: str = "other") -> threading.Thread:
    thread = threading.Thread(target=call, name=name)
    thread.start()
    return thread


def never() -> bool:
    return False


def test_a_request_waits_for_the_end_of_the_step_and_the_next_step_for_the_request() -> None:
    gate = StepGate(never)
    gate.open(threading.RLock())
    order: list[str] = []
    served, may_end = threading.Event(), threading.Event()

    def save() -> None:
        order.append(f"request begins in {threading.current_thread().name}")
        served.set()
        assert may_end.wait(20)
        order.append("request ends")

    def steps() -> None:
        gate.leave_step(never)
        gate.enter_step(never)
        order.append("next step")

    gate.enter_step(never)
    operator = in_thread(lambda: gate.run_between_steps(save))
    assert not served.wait(0.3)
    order.append("step ends")
    stepper = in_thread(steps, "training")
    assert served.wait(20)
    may_end.set()
    operator.join(20)
    stepper.join(20)
    assert order == ["step ends", "request begins in training", "request ends", "next step"]


def test_the_caller_runs_its_request_while_no_step_runs() -> None:
    gate = StepGate(never)
    gate.open(threading.RLock())
    done: list[str] = []
    gate.run_between_steps(lambda: done.append(threading.current_thread().name))
    assert done == [threading.current_thread().name]


def test_the_caller_leaves_its_request_to_a_busy_session() -> None:
    gate = StepGate(never)
    lock = threading.RLock()
    gate.open(lock)
    done: list[str] = []
    posted = threading.Event()

    def ask() -> None:
        posted.set()
        gate.run_between_steps(lambda: done.append(threading.current_thread().name))

    with lock:  # the session reads its next batch: no step runs, yet nobody may touch it
        operator = in_thread(ask, "operator")
        assert posted.wait(20)
        operator.join(0.5)
        assert done == []
        gate.enter_step(never)
        assert done == [threading.current_thread().name]
        gate.leave_step(never)
    operator.join(20)
    operator = in_thread(ask, "operator")  # now it does nothing, and the lock is free
    operator.join(20)
    assert done[1:] == ["operator"]


def test_requests_come_one_at_a_time() -> None:
    gate = StepGate(never)
    gate.open(threading.RLock())
    inside, most, served = 0, 0, 0

    def save() -> None:
        nonlocal inside, most, served
        inside += 1
        most = max(most, inside)
        served += 1
        inside -= 1

    def ask() -> None:
        for _ in range(50):
            gate.run_between_steps(save)

    threads = [in_thread(ask) for _ in range(4)]
    while any(thread.is_alive() for thread in threads):
        gate.enter_step(never)
        assert inside == 0
        gate.leave_step(never)
    assert (most, served) == (1, 200)


def test_a_pause_holds_steps_back_serves_and_ends() -> None:
    paused = True
    gate = StepGate(lambda: paused)
    gate.open(threading.RLock())
    stepping = threading.Event()

    def step() -> None:
        gate.enter_step(never)
        stepping.set()

    stepper = in_thread(step)
    assert not stepping.wait(0.1)
    served: list[int] = []
    gate.run_between_steps(lambda: served.append(1))
    assert served == [1]
    assert not stepping.is_set()
    paused = False
    gate.wake()
    assert stepping.wait(20)
    stepper.join(20)


def test_a_stop_ends_a_pause() -> None:
    gate = StepGate(lambda: True)
    gate.open(threading.RLock())
    gate.enter_step(lambda: True)
    gate.leave_step(lambda: True)


def test_without_a_session_requests_are_refused() -> None:
    gate = StepGate(never)
    with pytest.raises(FailedPreconditionError, match="no session trains now"):
        gate.run_between_steps(lambda: pytest.fail("there is no session"))
    gate.open(threading.RLock())
    gate.enter_step(never)
    refused: list[str] = []

    def ask() -> None:
        with pytest.raises(FailedPreconditionError) as failed:
            gate.run_between_steps(lambda: pytest.fail("the session has ended"))
        refused.append(str(failed.value))

    operator = in_thread(ask)
    gate.close()
    operator.join(20)
    assert len(refused) == 1


def test_a_disconnected_caller_cancels_and_does_not_block_steps() -> None:
    gate = StepGate(never)
    gate.open(threading.RLock())
    gate.enter_step(never)
    with pytest.raises(CancelledError, match="the caller went away"):
        gate.run_between_steps(lambda: pytest.fail("a step runs"), is_wanted=never)
    gate.leave_step(never)
    gate.enter_step(never)


def test_an_error_of_a_request_is_raised_in_its_caller_and_steps_resume() -> None:
    def fail() -> None:
        raise OSError("disk full")

    gate = StepGate(lambda: paused)
    paused = True
    gate.open(threading.RLock())
    stepper = in_thread(lambda: gate.enter_step(never))
    with pytest.raises(OSError, match="disk full"):
        gate.run_between_steps(fail)
    paused = False
    gate.wake()
    stepper.join(20)


def test_an_interrupt_of_the_thread_that_steps_is_its_own_too() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    gate = StepGate(never)
    gate.open(threading.RLock())
    gate.enter_step(never)
    told = threading.Event()

    def ask() -> None:
        with pytest.raises(KeyboardInterrupt):
            gate.run_between_steps(interrupt)
        told.set()

    operator = in_thread(ask)
    while not gate._requests:
        pass
    with pytest.raises(KeyboardInterrupt):
        gate.leave_step(never)
    operator.join(20)
    assert told.is_set()


def test_a_step_that_raised_is_discarded_when_the_session_is_rebuilt() -> None:
    gate = StepGate(never)
    gate.open(threading.RLock())
    gate.enter_step(never)  # and never left
    gate.open(threading.RLock())
    served: list[int] = []
    gate.run_between_steps(lambda: served.append(1))
    assert served == [1]
