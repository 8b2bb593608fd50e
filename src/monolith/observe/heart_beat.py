"""The heartbeat of a job, also while it waits for other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from monolith.background import PeriodicThread
from monolith.clock import Clock, SystemClock
from monolith.observe.metric_recorder import MetricRecorder, get_metric_prefix, process_recorder, require_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


EVERY_SECONDS = 30.0


class HeartBeat:
    """Emits ``training_heart_beat`` with the time: ``type=running`` from the start on, ``type=stopped`` at the end.

    A thread emits while it is open, so that a waiting job is not taken for dead. A context manager, which may be
    entered again.

    Args:
        clock: Source of time.
        every_seconds: Seconds between two heartbeats.
        metrics: Client that emits them.
    """

    def __init__(
        self, clock: Clock | None = None, every_seconds: float = EVERY_SECONDS, *, metrics: MetricClient | None = None
    ) -> None:
        if not every_seconds > 0:
            raise ValueError(f"HeartBeat: every_seconds must be > 0, got {every_seconds}")
        self.every_seconds = every_seconds
        self._metrics = metrics or MetricClient()
        self._clock = clock or SystemClock()
        self._thread: PeriodicThread | None = None

    def beat(self) -> None:
        """Emits that training runs."""
        self._metrics.emit_store("training_heart_beat", self._clock.now(), {"type": "running"})

    def start(self) -> None:
        """Emits one heartbeat, and further ones until `stop`."""
        self.beat()
        self._thread = PeriodicThread(self.beat, every=self.every_seconds, name="training_heart_beat")
        self._thread.start(after=self.every_seconds)

    def stop(self) -> None:
        """Emits that training has stopped."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        self._metrics.emit_store("training_heart_beat", self._clock.now(), {"type": "stopped"})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# >>> from monolith.observe import MetricClient, MetricRecorder
# >>> recorder = MetricRecorder()
# >>> client = MetricClient("monolith.containers", recorder=recorder)
# >>> client.emit_store("num_left_ps", 3, {"model_name": "ranker"})
# >>> recorder.gauge("monolith.containers.num_left_ps", {"model_name": "ranker"})
# 3.0


class MetricClient:
    """Emits metrics under one prefix. Thread-safe.

    Args:
        prefix: First part of names, followed by a dot; by default the current value of `get_metric_prefix`.
        recorder: Target of the values; by default the recorder of the process, which the scrape endpoint shows.
    """

    def __init__(self, prefix: str | None = None, *, recorder: MetricRecorder | None = None) -> None:
        self.prefix = get_metric_prefix() if prefix is None else prefix
        self._recorder = process_recorder() if recorder is None else recorder

    def emit_counter(self, name: str, value: float = 1, tags: Mapping[str, object] | None = None) -> None:
        """Adds `value`, at least 0, to the counter."""
        self._recorder.add(self._full(name), value, tags)

    def emit_timer(self, name: str, value: float, tags: Mapping[str, object] | None = None) -> None:
        """Adds one measurement; the unit is the caller's, one per name."""
        self._recorder.measure(self._full(name), value, tags)

    def counter(self, name: str, tags: Mapping[str, object] | None = None) -> Callable[[float], None]:
        """Returns a function that adds to one counter: like `emit_counter`, for frequent use."""
        return self._recorder.adder(self._full(name), tags)

    def timer(self, name: str, tags: Mapping[str, object] | None = None) -> Callable[[float], None]:
        """Returns a function that adds measurements to one timer: like `emit_timer`, for frequent use."""
        return self._recorder.measurer(self._full(name), tags)

    def emit_store(self, name: str, value: float, tags: Mapping[str, object] | None = None) -> None:
        """Replaces the value."""
        self._recorder.set(self._full(name), value, tags)

    def flush(self) -> None:
        """Does nothing: emitted values are readable as soon as the emitting call returns."""

    def _full(self, name: str) -> str:
        require_text("metric name", name, "run_steps.all")
        return f"{self.prefix}.{name}" if self.prefix else name
