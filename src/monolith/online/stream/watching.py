"""Reports the state of a run on a stream: lag, stalls, and skipped examples."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monolith.clock import SystemClock
from monolith.errors import FailedPreconditionError
from monolith.hook import Hook
from monolith.observe import MetricClient

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext
    from monolith.observe import Progress
    from monolith.online.stream.dataset import ExampleStream

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_METRICS = 1.0


class StreamHook(Hook):
    """Hook that reports the progress of a session in its stream, and completes pending work while it is silent.

    Pending reads of the stream are ended with the session.

    Args:
        stream: Stream that the session reads.
        bar: Progress bar; None: metrics and the log only.
        task: Name of the task, for messages.
        clock: Measures the time between metrics.
    """

    def __init__(
        self, stream: ExampleStream, bar: Progress | None = None, *, task: str = "task", clock: Clock | None = None
    ) -> None:
        self._stream = stream
        self._bar = bar
        self._task = task
        self._clock = SystemClock() if clock is None else clock
        self._emitted = 0.0
        self._session: HookedSession | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Registers the callbacks of the stream."""
        self._session = session
        self._stream.is_over = lambda: session.stop_requested
        self._stream.on_silence = self._silence
        self._stream.on_flow = lambda seconds: self._tell(f"stream: resumed after {seconds:.0f} s")

    def before_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Checks that the task reads the stream.

        Raises:
            FailedPreconditionError: the task does not read the stream.
        """
        if not self._stream.was_read:
            raise FailedPreconditionError(
                f"{self._task}: the run was given the stream '{self._stream.place}', but input_fn did not read it;"
                ' return self.ctx.examples(batch_size).parse(...) for mode "train", or omit the stream'
            )

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Updates the progress bar, and emits metrics periodically."""
        if self._bar is not None:
            self._bar.update(0, **self._fields())
        if self._clock.monotonic() - self._emitted >= _SECONDS_BETWEEN_METRICS:
            self._emit()

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Emits the final metrics."""
        self._emit()

    def _fields(self) -> dict[str, Any]:
        stream = self._stream
        left_out = {name: value for name, value in stream.counts.to_dict().items() if value and name != "examples"}
        return {"lag": lambda: f"{stream.lag_seconds:.1f} s ({stream.behind:,} {stream.unit})", **left_out}

    def _silence(self, seconds: float) -> None:
        """Completes work postponed to the next step, which may never come, and reports a stall."""
        session = self._session
        if session is not None:
            with session.step_lock:
                session.state.settle()
        self._emit(silent_seconds=seconds)
        if seconds >= self._stream.config.stall_seconds:
            self._tell(
                f"stream: nothing has come for {seconds:.0f} s; {self._stream.counts.examples:,} examples are trained,"
                " and their rows are out; waiting for more"
            )

    def _tell(self, text: str) -> None:
        if self._bar is None:
            _log.info("%s", text)
        else:
            self._bar.write(text)

    def _emit(self, silent_seconds: float = 0.0) -> None:
        self._emitted = self._clock.monotonic()
        client = MetricClient("monolith.stream")
        stream = self._stream
        for name, value in stream.counts.to_dict().items():
            client.emit_store(name, value)
        client.emit_store("lag_seconds", stream.lag_seconds)
        client.emit_store(f"lag_{stream.unit}", stream.behind)
        client.emit_store("silent_seconds", silent_seconds)
