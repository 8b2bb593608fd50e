"""Hooks that end training: a value stops improving, the loss is not finite, or a signal arrives."""

from __future__ import annotations

import logging
import math
import signal
from typing import TYPE_CHECKING, Any, Literal

from monolith.hook import Hook
from monolith.hooks.throughput import last_loss
from monolith.hooks.timer import SecondOrStepTimer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from monolith.hook import HookedSession, StepContext
    from monolith.observe import Progress


_log = logging.getLogger(__name__)


class EarlyStop:
    """Keeps the best value and decides when to stop waiting for a better one.

    Args:
        patience_steps: Steps without a better value after which to stop.
        better: Whether lower or higher values are better.
        min_delta: By how much a value must be better to count.

    >>> stop = EarlyStop(patience_steps=20)
    >>> [stop.update(step, loss) for step, loss in [(0, 0.7), (10, 0.6), (20, 0.65), (30, 0.61)]]
    [False, False, False, True]
    >>> stop.best, stop.best_step
    (0.6, 10)
    """

    def __init__(
        self, *, patience_steps: int, better: Literal["lower", "higher"] = "lower", min_delta: float = 0.0
    ) -> None:
        if patience_steps < 1:
            raise ValueError(f"EarlyStop: patience_steps must be >= 1, got {patience_steps}")
        if better not in {"lower", "higher"}:
            raise ValueError(f"EarlyStop: better must be 'lower' or 'higher', got {better!r}")
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"EarlyStop: min_delta must be finite and >= 0, got {min_delta}")
        self._patience_steps = patience_steps
        self._sign = 1.0 if better == "lower" else -1.0
        self._min_delta = min_delta
        self._first_step: int | None = None
        self.best: float | None = None
        """The best value so far."""
        self.best_step: int | None = None
        """Step of the best value."""

    def update(self, step: int, value: float) -> bool:
        """Adds the value of a step and returns whether to stop. NaN is never better."""
        if self._first_step is None:
            self._first_step = step
        if not math.isnan(value) and (self.best is None or self._sign * (self.best - value) > self._min_delta):
            self.best, self.best_step = value, step
            return False
        since = self._first_step if self.best_step is None else self.best_step
        return step - since >= self._patience_steps


class EarlyStoppingHook(Hook):
    """Evaluates a value periodically, and requests a stop when it stops improving.

    Args:
        value: Computes the value, such as an evaluation; None: not yet.
        stop: When to stop.
        every_steps: Steps from one evaluation to the next.
    """

    def __init__(
        self, value: Callable[[HookedSession], float | None], stop: EarlyStop, *, every_steps: int = 1000
    ) -> None:
        self._value = value
        self._stop = stop
        self._timer = SecondOrStepTimer(every_steps=every_steps)

    def after_create_session(self, session: HookedSession) -> None:
        """Starts counting the steps to the first evaluation."""
        self._timer.reset()
        self._timer.update_last_triggered_step(session.global_step)

    def after_run(self, context: StepContext) -> None:
        """Evaluates when the timer is due."""
        step = context.global_step
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        value = self._value(context.session)
        if value is not None and self._stop.update(step, float(value)):
            _log.info("stopping at step %d: no better than %s at step %s", step, self._stop.best, self._stop.best_step)
            context.request_stop()


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN or infinite; the training since the last checkpoint is lost."""


class NanTensorHook(Hook):
    """Checks the loss after each step. It precedes the saver, so that a broken model is not saved.

    Args:
        fail_on_nan_loss: Whether to raise; otherwise the hook requests a stop.
        every_steps: Check only every `every_steps` steps: reading the loss waits for the GPU.
        loss: Reads the loss of the last step; by default from the session.
    """

    def __init__(
        self,
        *,
        fail_on_nan_loss: bool = True,
        every_steps: int = 1,
        loss: Callable[[HookedSession], float | None] = last_loss,
    ) -> None:
        if every_steps < 1:
            raise ValueError(f"NanTensorHook: every_steps must be >= 1, got {every_steps}")
        self._fail = fail_on_nan_loss
        self._every_steps = every_steps
        self._loss = loss
        self._num_steps = 0

    def after_run(self, context: StepContext) -> None:
        """Raises or stops if the loss is not finite.

        Raises:
            NanLossDuringTrainingError: The loss is not finite, and `fail_on_nan_loss` is set.
        """
        self._num_steps += 1
        if self._num_steps % self._every_steps:
            return
        loss = self._loss(context.session)
        if loss is None or math.isfinite(loss):
            return
        message = f"NaN loss during training: {loss} at step {context.global_step}"
        if self._fail:
            raise NanLossDuringTrainingError(f"{message}; lower the learning rate, clip gradients or check the samples")
        _log.error("%s; stopping", message)
        context.request_stop()


class StopOnSignal(Hook):
    """Ends training after the current step, at the first SIGINT or SIGTERM; a second SIGINT interrupts the step."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._session: HookedSession | None = None
        self._before: dict[int, Any] = {}
        self.received: signal.Signals | None = None
        """The first signal received."""

    def begin(self) -> None:
        """Installs the signal handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)

    def after_create_session(self, session: HookedSession) -> None:
        """Attaches to the session. A signal that was received before stops it immediately."""
        self._session = session
        if self.received is not None:
            session.request_stop()

    def restore(self) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's signature
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        if self._session is not None:
            self._session.request_stop()
        self._bar.write(f"{self.received.name}: stopping after this step and saving; once more to interrupt the step")
