from __future__ import annotations

import threading

import pytest

from monolith.clock import Clock
from monolith.testing import FakeClock, fake_clock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = FakeClock(now=100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    assert isinstance(clock, FakeClock)
    clock.advance(2.5)
    clock.advance(0.0)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)


def test_sleeping_advances_a_clock_that_does_not_block() -> None:
    clock = FakeClock()
    clock.sleep(3.0)
    clock.sleep(-1.0)
    assert clock.monotonic() == 3.0


def test_a_jump_changes_the_date_and_not_the_time_passed() -> None:
    clock = FakeClock(now=100.0)
    clock.advance(1.0)
    clock.jump_to(50.0)
    assert (clock.now(), clock.monotonic()) == (50.0, 1.0)


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("-inf")])
def test_time_cannot_pass_backwards(seconds: float) -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="seconds >= 0"):
        clock.advance(seconds)
    assert clock.monotonic() == 0.0


def test_a_blocking_sleep_ends_when_enough_time_has_passed() -> None:
    clock = FakeClock(blocking=True)
    woken: list[float] = []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        woken.append(seconds)

    sleepers = [threading.Thread(target=sleep, args=(seconds,)) for seconds in (1.0, 5.0)]
    for thread in sleepers:
        thread.start()
    clock.wait_for_sleepers(2)
    clock.advance(1.0)
    sleepers[0].join(timeout=60)
    assert woken == [1.0]
    assert sleepers[1].is_alive()
    clock.advance(4.0)
    sleepers[1].join(timeout=60)
    assert woken == [1.0, 5.0]


@pytest.mark.parametrize("wakes", ["notified", "advanced"])
def test_a_wait_for_a_condition_ends_with_it_or_with_the_time(wakes: str) -> None:
    clock, condition, woken = FakeClock(blocking=True), threading.Condition(), threading.Event()

    def wait() -> None:
        with condition:
            clock.wait(condition, 5.0)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    clock.wait_for_sleepers(1)
    if wakes == "notified":
        with condition:
            condition.notify_all()
    else:
        clock.advance(5.0)
    thread.join(30)
    assert woken.is_set()
    assert clock.monotonic() == (0.0 if wakes == "notified" else 5.0)


def test_a_wait_for_a_condition_is_time_that_passes() -> None:
    clock, condition = FakeClock(), threading.Condition()
    with condition:
        clock.wait(condition, 5.0)
    assert clock.monotonic() == 5.0


def test_a_wait_that_cannot_end_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_clock, "_PATIENCE_SECONDS", 0.01)
    clock = FakeClock(blocking=True)
    with pytest.raises(TimeoutError, match="to be advanced to 1"):
        clock.sleep(1.0)
    with pytest.raises(TimeoutError, match="for 1 sleepers"):
        clock.wait_for_sleepers(1)
    condition = threading.Condition()
    with pytest.raises(TimeoutError, match="for a condition"), condition:
        clock.wait(condition, 1.0)
