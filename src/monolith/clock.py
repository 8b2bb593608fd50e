"""Time as an argument: what decides by the clock takes a `Clock`, so that tests can own it."""

from __future__ import annotations

import time
from typing import Protocol


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
