"""Time as an argument: what decides by the clock takes a `Clock`, so that tests can own it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

LOOK_SECONDS = 0.2
"""How often a waiting thread looks at what nobody tells it about."""
FOREVER_SECONDS = 3600.0
"""How long a wait without an end sleeps at a time."""


class Clock(Protocol):
    """Where now comes from and how to wait; every method may be called from any thread."""

    def now(self) -> float:
        """Seconds since the Unix epoch; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back, so deadlines are measured with it."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after at least ``seconds``."""
        ...

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Return when the condition, which is held, is notified, and after ``seconds`` at the latest."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for at least ``seconds``."""
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait for the condition, which is held, for at most ``seconds``."""
        condition.wait(seconds)


def wait_until(
    reached: Callable[[], bool],
    *,
    changed: threading.Condition,
    clock: Clock,
    timeout_seconds: float | None,
    give_up: Callable[[], bool] | None = None,
) -> bool:
    """Waits for what is told by a condition; False: the time is over, or it was given up.

    Args:
        reached: Asked at first, and whenever the condition is notified; it is held then.
        changed: The condition; the caller does not hold it.
        clock: Measures the time.
        timeout_seconds: The longest; None: as long as it takes.
        give_up: Asked five times a second, as nobody tells about it; True ends the wait.
    """
    deadline = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
    with changed:
        while not reached():
            rest = FOREVER_SECONDS if deadline is None else deadline - clock.monotonic()
            if rest <= 0 or (give_up is not None and give_up()):
                return False
            clock.wait(changed, rest if give_up is None else min(rest, LOOK_SECONDS))
        return True
