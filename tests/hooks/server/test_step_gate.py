"""Between two steps, and only there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from monolith.errors import CancelledError, FailedPreconditionError
from monolith.hooks.server import StepGate


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def never() -> bool:
    return False


def test_a_request_waits_for_the_end_of_the_step_and_the_next_step_for_the_request() -> None:
    gate = StepGate(never)
    gate.open()
    order: list[str] = []
    served, may_end = threading.Event(), threading.Event()

    def request() -> None:
        with gate.between_steps():
            order.append("request begins")
            served.set()
            assert may_end.wait(20)
            order.append("request ends")

    gate.enter_step(never)
    operator = in_thread(request)
    assert not served.wait(0.1)
    order.append("step ends")
    gate.leave_step()

    def step() -> None:
        gate.enter_step(never)
        order.append("next step")

    stepper = in_thread(step)
    assert served.wait(20)
    may_end.set()
    operator.join(20)
    stepper.join(20)
    assert order == ["step ends", "request begins", "request ends", "next step"]


def test_requests_come_one_at_a_time() -> None:
    gate = StepGate(never)
    gate.open()
    inside, most = 0, 0

    def request() -> None:
        nonlocal inside, most
        for _ in range(50):
            with gate.between_steps():
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [in_thread(request) for _ in range(4)]
    for _ in range(50):
        gate.enter_step(never)
        assert inside == 0
        gate.leave_step()
    for thread in threads:
        thread.join(20)
    assert most == 1


def test_a_pause_holds_steps_back_and_a_stop_ends_it() -> None:
    paused = True
    gate = StepGate(lambda: paused)
    gate.open()
    stepping = threading.Event()

    def step() -> None:
        gate.enter_step(never)
        stepping.set()

    stepper = in_thread(step)
    assert not stepping.wait(0.1)
    with gate.between_steps():
        pass  # requests are served in a pause
    assert not stepping.is_set()
    paused = False
    gate.wake()
    assert stepping.wait(20)
    stepper.join(20)
    gate.leave_step()
    paused = True
    gate.enter_step(lambda: True)


def test_without_a_session_requests_are_refused() -> None:
    gate = StepGate(never)
    with pytest.raises(FailedPreconditionError, match="has ended or has not begun"), gate.between_steps():
        pytest.fail("there is no session")
    gate.open()
    gate.enter_step(never)
    refused = threading.Event()

    def request() -> None:
        with pytest.raises(FailedPreconditionError), gate.between_steps():
            pytest.fail("the session has ended")
        refused.set()

    operator = in_thread(request)
    gate.close()
    operator.join(20)
    assert refused.is_set()


def test_a_caller_that_went_away_gives_up_and_holds_nobody_back() -> None:
    gate = StepGate(never)
    gate.open()
    gate.enter_step(never)
    with pytest.raises(CancelledError, match="the caller went away"), gate.between_steps(never):
        pytest.fail("a step runs")
    gate.leave_step()
    gate.enter_step(never)


def test_a_request_that_fails_lets_steps_go_on() -> None:
    gate = StepGate(never)
    gate.open()
    with pytest.raises(OSError, match="disk full"), gate.between_steps():
        raise OSError("disk full")
    gate.enter_step(never)


def test_a_step_that_raised_is_forgotten_when_the_session_is_rebuilt() -> None:
    gate = StepGate(never)
    gate.open()
    gate.enter_step(never)  # and never left
    gate.open()
    with gate.between_steps():
        pass
