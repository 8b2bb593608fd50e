"""Stand-ins for the session that a hook is attached to."""

from __future__ import annotations

import threading
from collections.abc import Callable

from monolith.checkpoint import TrainState
from monolith.hook import Call, LastStep, StepContext
from monolith.train import Collections


class FakeSession:
    """A session whose step and last step a test sets, and that keeps what hooks ask of it."""

    def __init__(self, global_step: int = 0, *, last: LastStep | None = None, state: TrainState | None = None) -> None:
        self.global_step = global_step
        self.last = last
        self.state = state or TrainState()
        self.collections = Collections()
        self.step_lock = threading.RLock()
        self.stop_requested = False
        self.num_settled = 0
        self._closing: list[Call] = []

    def settle(self) -> None:
        self.num_settled += 1

    def request_stop(self) -> None:
        self.stop_requested = True

    def on_close(self, close: Call) -> None:
        self._closing.append(close)

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()

    def context(self) -> StepContext:
        return StepContext(self)


class SleepCalls:
    """A clock on which time passes by sleeping, and that does something else at each sleep."""

    def __init__(self, at_sleep: Callable[[], None] = lambda: None) -> None:
        self.sleeps: list[float] = []
        self._at_sleep = at_sleep
        self._time = 0.0

    def now(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._time += seconds
        self._at_sleep()

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        condition.release()
        try:
            self.sleep(seconds)
        finally:
            condition.acquire()
