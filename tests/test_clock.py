"""The system's clock is a `Clock`, and keeps its promises."""

from __future__ import annotations

import time

from monolith.clock import Clock, SystemClock


def test_now_is_unix_time() -> None:
    clock: Clock = SystemClock()
    before = time.time()
    assert before <= clock.now() <= time.time()


def test_sleep_lasts_at_least_as_long_as_asked() -> None:
    clock: Clock = SystemClock()
    started = clock.monotonic()
    clock.sleep(0.01)
    assert clock.monotonic() - started >= 0.01
