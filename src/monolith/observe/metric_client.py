"""Emits metrics: counters, timers and stores with a name and tags.

>>> from monolith.observe import MetricClient, MetricRecorder
>>> recorder = MetricRecorder()
>>> client = MetricClient("monolith.containers", recorder=recorder)
>>> client.emit_store("num_left_ps", 3, {"model_name": "ranker"})
>>> recorder.gauge("monolith.containers.num_left_ps", {"model_name": "ranker"})
3.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.observe._metric_names import require_text
from monolith.observe.metric_prefix import get_metric_prefix
from monolith.observe.metric_recorder import process_recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.observe.metric_recorder import MetricRecorder


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
