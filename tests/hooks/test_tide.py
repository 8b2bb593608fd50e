"""Windows of the day, and what depends on them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.sessions import FakeSession
from monolith.hooks import (
    SecondOrStepTimer,
    SecondOrStepTimerWithTideSetting,
    TideStoppingHook,
    TideWindow,
    before,
    tide_available_now,
)
from monolith.hooks.timer import TideConfig
from monolith.testing import FakeClock

DAYTIME = TideConfig(tide_start_hour=8, tide_start_minute=30, tide_end_hour=20, tide_end_minute=0)
HOURS, MINUTES = st.integers(0, 23), st.integers(0, 59)


def clock_at(hour: int, minute: int = 0, second: int = 0) -> FakeClock:
    return FakeClock(now=datetime(2026, 3, 1, hour, minute, second, tzinfo=UTC).timestamp())


@given(HOURS, MINUTES, HOURS, MINUTES)
def test_before_orders_times_of_day(hour1: int, minute1: int, hour2: int, minute2: int) -> None:
    assert before(hour1, minute1, hour2, minute2) == (hour1 * 60 + minute1 < hour2 * 60 + minute2)


@given(HOURS, MINUTES, HOURS, MINUTES)
def test_a_window_is_the_minutes_that_a_hand_passes_from_its_start_to_its_end(
    start_hour: int, start_minute: int, end_hour: int, end_minute: int
) -> None:
    start, end = start_hour * 60 + start_minute, end_hour * 60 + end_minute
    open_minutes = (end - start) % 1440 or 1440
    for minute in {0, 1439, start, end, (start - 1) % 1440, (end - 1) % 1440, (start + open_minutes // 2) % 1440}:
        expected = (minute - start) % 1440 < open_minutes
        clock = clock_at(minute // 60, minute % 60, 59)
        assert tide_available_now(start_hour, start_minute, end_hour, end_minute, clock=clock) == expected


def test_a_window_across_midnight_is_closed_at_noon() -> None:
    assert tide_available_now(22, 0, 6, 0, clock=clock_at(23, 59))
    assert tide_available_now(22, 0, 6, 0, clock=clock_at(5, 59))
    assert not tide_available_now(22, 0, 6, 0, clock=clock_at(12))
    assert not tide_available_now(22, 0, 6, 0, clock=clock_at(6))


@pytest.mark.parametrize("hour", [0, 7, 12, 23])
def test_a_window_that_ends_where_it_starts_is_always_open(hour: int) -> None:
    assert tide_available_now(7, 15, 7, 15, clock=clock_at(hour))


@pytest.mark.parametrize("bad", [(24, 0, 1, 0), (-1, 0, 1, 0), (1, 60, 2, 0), (1, 0, 2, -1)])
def test_what_is_no_time_of_day_is_refused(bad: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected a time of day from 00:00 to 23:59, got"):
        tide_available_now(*bad)


def test_half_a_window_is_refused_with_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"missing \['tide_end_hour', 'tide_end_minute'\]"):
        TideStoppingHook(tide_start_hour=1, tide_start_minute=0)
    with pytest.raises(TypeError, match="unknown options"):
        TideStoppingHook(tide_start=1)  # type: ignore[call-arg]
    assert TideWindow.of({"tide_start_hour": None}) is None


def test_stop_if_tide_not_available() -> None:
    session = FakeSession()
    TideStoppingHook(clock=clock_at(21), **DAYTIME).before_run(session.context())
    assert session.stop_requested


def test_do_not_stop_if_tide_available() -> None:
    session = FakeSession()
    TideStoppingHook(clock=clock_at(9), **DAYTIME).before_run(session.context())
    TideStoppingHook(clock=clock_at(9)).before_run(session.context())
    assert not session.stop_requested


class TestSecondOrStepTimer:
    def test_exactly_one_interval_is_given(self) -> None:
        with pytest.raises(ValueError, match=r"Either every_secs or every_steps should be provided\."):
            SecondOrStepTimer()
        with pytest.raises(ValueError, match=r"Can not provide both every_secs and every_steps\."):
            SecondOrStepTimer(1, 1)
        with pytest.raises(ValueError, match="every_secs must be > 0, got 0"):
            SecondOrStepTimer(0)

    def test_steps(self) -> None:
        timer = SecondOrStepTimer(every_steps=3)
        due = []
        for step in range(1, 12):
            if timer.should_trigger_for_step(step):
                timer.update_last_triggered_step(step)
                due.append(step)
            assert not timer.should_trigger_for_step(due[-1])
        assert due == [1, 4, 7, 10]

    def test_seconds_and_what_has_passed(self) -> None:
        clock = FakeClock()
        timer = SecondOrStepTimer(every_secs=2, clock=clock)
        assert timer.should_trigger_for_step(1)
        assert timer.update_last_triggered_step(1) == (None, None)
        clock.advance(1.5)
        clock.jump_to(1e9)  # an operator sets the date: no time has passed
        assert not timer.should_trigger_for_step(5)
        clock.advance(0.5)
        assert timer.should_trigger_for_step(5)
        assert timer.update_last_triggered_step(5) == (2.0, 4)
        timer.reset()
        assert timer.last_triggered_step() is None
        assert timer.should_trigger_for_step(5)


class TestSecondOrStepTimerWithTideSetting:
    def test_no_tide_setting(self) -> None:
        clock = clock_at(21)
        timer = SecondOrStepTimerWithTideSetting(every_secs=60, clock=clock)
        timer.update_last_triggered_step(1)
        clock.advance(59)
        assert not timer.should_trigger_for_step(2)
        clock.advance(1)
        assert timer.should_trigger_for_step(2)

    def test_tide_available(self) -> None:
        clock = clock_at(9)
        timer = SecondOrStepTimerWithTideSetting(every_secs=60, tide_every_secs=10, clock=clock, **DAYTIME)
        timer.update_last_triggered_step(1)
        clock.advance(59)
        assert not timer.should_trigger_for_step(2)
        clock.advance(1)
        assert timer.should_trigger_for_step(2)

    def test_tide_not_available(self) -> None:
        clock = clock_at(21)
        timer = SecondOrStepTimerWithTideSetting(every_secs=60, tide_every_secs=10, clock=clock, **DAYTIME)
        assert timer.should_trigger_for_step(1)
        timer.update_last_triggered_step(1)
        clock.advance(9.5)
        assert not timer.should_trigger_for_step(2)
        clock.advance(0.5)
        assert not timer.should_trigger_for_step(1)
        assert timer.should_trigger_for_step(2)

    def test_outside_the_window_seconds_take_the_place_of_steps(self) -> None:
        clock = clock_at(21)
        timer = SecondOrStepTimerWithTideSetting(every_steps=5, tide_every_secs=10, clock=clock, **DAYTIME)
        timer.update_last_triggered_step(1)
        assert not timer.should_trigger_for_step(1000)
        clock.advance(10)
        assert timer.should_trigger_for_step(2)

    def test_disabled_it_is_never_due(self) -> None:
        timer = SecondOrStepTimerWithTideSetting(every_steps=1)
        timer.disable()
        timer.trigger_next()
        assert not timer.enabled
        assert not timer.should_trigger_for_step(1)
        timer.enable()
        assert timer.should_trigger_for_step(1)

    def test_made_due_by_hand_once(self) -> None:
        timer = SecondOrStepTimerWithTideSetting(every_steps=1000)
        timer.update_last_triggered_step(1)
        timer.trigger_next()
        assert not timer.should_trigger_for_step(1)
        assert timer.should_trigger_for_step(2)
        timer.update_last_triggered_step(2)
        assert not timer.should_trigger_for_step(3)

    def test_an_interval_for_a_missing_window_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="interval outside a tide window"):
            SecondOrStepTimerWithTideSetting(every_steps=1, tide_every_secs=10)
        with pytest.raises(ValueError, match="tide_every_secs must be > 0, got 0"):
            SecondOrStepTimerWithTideSetting(every_steps=1, tide_every_secs=0, **DAYTIME)
