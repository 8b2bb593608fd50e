"""The request that a process end."""

from __future__ import annotations

import signal
import threading

import pytest

from monolith.stop_request import StopRequest


def test_all_waiters_are_notified_and_those_that_come_later() -> None:
    request = StopRequest()
    told: list[bool] = []
    waiting = [threading.Thread(target=lambda: told.append(request.wait(60))) for _ in range(3)]
    for each in waiting:
        each.start()
    assert not request.wait(0.01)
    request.set()
    request.set()
    for each in waiting:
        each.join(60)
    assert told == [True] * 3
    assert request.is_set()
    assert request.wait()
    assert request.wait(0.0)


def test_a_stop_request_cannot_be_cleared() -> None:
    request = StopRequest()
    request.set()
    with pytest.raises(RuntimeError, match="make a new StopRequest"):
        request.clear()
    assert request.wait(0.0)


@pytest.mark.slow
def test_a_wait_without_a_wakeup_polls() -> None:
    """As when the handler of a signal can only run once the wait is over."""
    request = StopRequest()
    threading.Timer(0.01, setattr, (request, "_is_made", True)).start()
    assert request.wait()


def test_a_signal_at_any_time_during_the_wait_ends_it() -> None:
    before = signal.getsignal(signal.SIGALRM)
    try:
        for _ in range(200):
            request = StopRequest()
            signal.signal(signal.SIGALRM, lambda *_, request=request: request.set())
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
            assert request.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
