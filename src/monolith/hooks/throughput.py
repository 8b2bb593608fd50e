"""The speed of a running job: periodic lines in the log, emitted metrics, and a heartbeat."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hook import Hook
from monolith.hooks.timer import SecondOrStepTimer
from monolith.observe import HeartBeat, MetricClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepRate:
    """Measurements from one report to the next."""

    global_step: int
    steps_per_second: float
    """Of the job: other workers move the global step too."""
    examples_per_second: float | None
    """Of this worker; None where its steps have no results."""
    loss: float | None
    """Of the last step; None where it computed none."""

    def __str__(self) -> str:
        parts = [f"step {self.global_step}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.6g}")
        parts.append(f"{self.steps_per_second:.4g} steps/s")
        if self.examples_per_second is not None:
            parts.append(f"{self.examples_per_second:.4g} examples/s")
        return ", ".join(parts)


class StepCounterHook(Hook):
    """Reports the speed of training. The first report comes one interval after the session was created.

    Args:
        every_steps: Steps from one report to the next; 100 unless `every_secs` is given.
        every_secs: Or seconds.
        report: Receives each report; by default a line of the log.
        clock: Measures the seconds.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        every_secs: float | None = None,
        *,
        report: Callable[[StepRate], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if every_steps is None and every_secs is None:
            every_steps = 100
        self._timer = SecondOrStepTimer(every_secs, every_steps, clock=clock or SystemClock())
        self._report = report or (lambda rate: _log.info("%s", rate))
        self._num_examples = 0
        self._counts_examples = False

    def after_create_session(self, session: HookedSession) -> None:
        """Starts counting."""
        self._timer.reset()
        self._timer.update_last_triggered_step(session.global_step)
        self._num_examples = 0

    def after_run(self, context: StepContext) -> None:
        """Counts a step, and reports when it is due."""
        last = context.session.last
        if last is not None:
            self._counts_examples = True
            self._num_examples += last.num_examples
        step = context.global_step
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        num_examples, self._num_examples = self._num_examples, 0
        if not seconds or steps is None:
            return  # no rate over zero seconds
        rate = num_examples / seconds if self._counts_examples else None
        self._report(StepRate(step, steps / seconds, rate, last_loss(context.session)))


HEARTBEAT_SECONDS = 30.0
THROUGHPUT_SECONDS = 30.0


class HeartbeatHook(Hook):
    """A `HeartBeat` as long as the session is open: every 30 s, and a last one at the end. Chief only.

    Args:
        metrics: Client of the metric.
        every_secs: Seconds from one heartbeat to the next.
        clock: Clock of the heartbeat.
    """

    def __init__(
        self, *, metrics: MetricClient | None = None, every_secs: float = HEARTBEAT_SECONDS, clock: Clock | None = None
    ) -> None:
        if not every_secs > 0:
            raise ValueError(f"HeartbeatHook: every_secs must be > 0, got {every_secs}")
        self._heart = HeartBeat(clock, every_secs, metrics=metrics)

    def after_create_session(self, session: HookedSession) -> None:
        """Sends a heartbeat now, and then periodically until the session closes."""
        session.on_close(self._heart.stop)
        self._heart.start()

    def beat(self) -> None:
        """Sends a heartbeat."""
        self._heart.beat()


class ThroughputMetricHook(Hook):
    """Emits how long the job took to start, and at most every 30 s how many steps it made and how long they took.

    Metrics, all tagged with model name and cluster type: timer ``run_start_elapsed_time.all`` (seconds), counter
    ``run_steps.all``, timer ``run_steps_elapsed_time.all`` (seconds a step). Chief only: steps are those of the job.

    Args:
        model_name: A tag.
        cluster_type: A tag: stable, tide, k8s.
        start_time_secs: Unix time at which the job was submitted; None: the first metric is not emitted.
        every_secs: Minimum seconds from one emission to the next.
        metrics: Client of the metrics.
        clock: Measures the times.
    """

    def __init__(
        self,
        model_name: str,
        *,
        cluster_type: str = "stable",
        start_time_secs: float | None = None,
        every_secs: float = THROUGHPUT_SECONDS,
        metrics: MetricClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._tags = {"model_name": model_name, "cluster_type": cluster_type}
        self._start_time_secs = start_time_secs
        self._every_secs = every_secs
        self._metrics = metrics or MetricClient()
        self._clock = clock or SystemClock()
        self._last: tuple[float, int] | None = None

    def before_run(self, context: StepContext) -> None:
        """Records the time of the first step."""
        if self._last is not None:
            return
        self._last = (self._clock.monotonic(), context.global_step)
        if self._start_time_secs is not None:
            elapsed = max(self._clock.now() - self._start_time_secs, 0.0)
            self._metrics.emit_timer("run_start_elapsed_time.all", elapsed, self._tags)
            self._start_time_secs = None

    def after_run(self, context: StepContext) -> None:
        """Emits when it is due and a step was made."""
        self._emit(context.global_step, at_least_seconds=self._every_secs)

    def end(self, session: HookedSession) -> None:
        """Emits the remaining steps."""
        self._emit(session.global_step, at_least_seconds=0.0)

    def _emit(self, step: int, *, at_least_seconds: float) -> None:
        if self._last is None:
            return
        (last_time, last_step), now = self._last, self._clock.monotonic()
        if step <= last_step or now - last_time < at_least_seconds:
            return
        self._last = (now, step)
        self._metrics.emit_counter("run_steps.all", step - last_step, self._tags)
        self._metrics.emit_timer("run_steps_elapsed_time.all", (now - last_time) / (step - last_step), self._tags)


def last_loss(session: HookedSession) -> float | None:
    """Returns the loss, or None where the step computed none. Waits for a GPU that computes it."""
    last = session.last
    return None if last is None or last.loss is None else float(last.loss)
