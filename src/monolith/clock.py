"""Time as an argument: code that depends on time takes a `Clock`, so that tests can control it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

LOOK_SECONDS = 0.2
"""Polling interval of a waiting thread, for changes without a notification."""
FOREVER_SECONDS = 3600.0
"""Length of each sleep in a wait without a deadline."""


class Clock(Protocol):
    """A source of time, and of waits. Thread-safe."""

    def now(self) -> float:
        """Returns seconds since the Unix epoch; may jump when the machine's clock is set."""

    def monotonic(self) -> float:
        """Returns seconds from an arbitrary origin; never goes back, so deadlines are measured with it."""

    def sleep(self, seconds: float) -> None:
        """Returns after at least ``seconds``."""

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Returns when the condition, which is held, is notified, and after ``seconds`` at the latest."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Returns seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds from an arbitrary origin that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread for at least ``seconds``."""
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Waits for the condition, which is held, for at most ``seconds``."""
        condition.wait(seconds)


def wait_until(
    reached: Callable[[], bool],
    *,
    changed: threading.Condition,
    clock: Clock,
    timeout_seconds: float | None,
    give_up: Callable[[], bool] | None = None,
) -> bool:
    """Waits until `reached` returns True; returns False at the timeout, or if `give_up` ended the wait.

    Args:
        reached: Called first, and whenever the condition is notified; the condition is held.
        changed: The condition; the caller does not hold it.
        clock: Measures the time.
        timeout_seconds: The longest wait; None: no limit.
        give_up: Polled five times a second, since nothing notifies of it; True ends the wait.
    """
    deadline = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
    with changed:
        while not reached():
            rest = FOREVER_SECONDS if deadline is None else deadline - clock.monotonic()
            if rest <= 0 or (give_up is not None and give_up()):
                return False
            clock.wait(changed, rest if give_up is None else min(rest, LOOK_SECONDS))
        return True
