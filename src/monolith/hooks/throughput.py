"""Emitted metrics of a running job: a heartbeat, and the number of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hook import Hook
from monolith.observe import HeartBeat, MetricClient

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext

__all__ = ["HeartbeatHook", "ThroughputMetricHook"]

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
        self,
        *,
        metrics: MetricClient | None = None,
        every_secs: float = HEARTBEAT_SECONDS,
        clock: Clock | None = None,
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
