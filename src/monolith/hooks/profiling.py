"""Traces of some steps: ten of five thousand by torch's profiler, or one range under CUDA's.

Chief only. A trace is a file for ``chrome://tracing`` or Perfetto: ``profile/step_<first>-<last>.json`` in the given
folder.
"""

from __future__ import annotations

import inspect
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monolith.errors import FailedPreconditionError
from monolith.files import CopyFile, join
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.hook import HookedSession, StepContext

_log = logging.getLogger(__name__)

NUM_STEPS = 10
EVERY_STEPS = 5000
STEPS_BEFORE_FIRST = 500
"""Default number of steps from the first one to the first window: start-up would distort a trace."""


class ProfileWindows:
    """Decides which steps are traced: `num_steps` from `start_step` on, repeated every `every_steps`.

    Args:
        start_step: First step of the first window; None: 500 steps after the first step seen.
        every_steps: Steps from the start of a window to that of the next one.
        num_steps: Steps of a window.

    >>> windows = ProfileWindows(3, every_steps=100, num_steps=2)
    >>> [step for step in range(300) if windows.contains(step)]
    [3, 4, 103, 104, 203, 204]
    """

    def __init__(
        self, start_step: int | None = None, *, every_steps: int = EVERY_STEPS, num_steps: int = NUM_STEPS
    ) -> None:
        if not 0 < num_steps < every_steps:
            raise ValueError(f"profiler: expected 0 < num_steps < every_steps, got {num_steps} and {every_steps}")
        if start_step is not None and start_step < 0:
            raise ValueError(f"profiler: start_step must be >= 0, got {start_step}")
        self._start_step = start_step
        self._every_steps = every_steps
        self._num_steps = num_steps

    def contains(self, step: int) -> bool:
        """Returns whether the step after `step` others is traced. The first call fixes the start of the windows."""
        if self._start_step is None:
            self._start_step = step + STEPS_BEFORE_FIRST
        return step >= self._start_step and (step - self._start_step) % self._every_steps < self._num_steps


class Profiler(Protocol):
    """A profiler, such as `torch.profiler.profile`."""

    def start(self) -> None:
        """Starts the trace."""

    def stop(self) -> None:
        """Stops the trace."""

    def export_chrome_trace(self, path: str) -> object:
        """Writes the trace to a local file."""


def make_torch_profiler() -> Profiler:
    """Returns a profiler of the CPU, and of the GPU where there is one."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    # Some releases warn at the start of each trace unless it specifies whether events are kept across cycles. Where
    # warnings are errors, the trace then did not start, and its end failed too. A window is one cycle.
    has_cycles = "acc_events" in inspect.signature(torch.profiler.profile).parameters
    options: dict[str, Any] = {"acc_events": True} if has_cycles else {}
    return torch.profiler.profile(activities=activities, **options)


class ProfilerHook(Hook):
    """Traces windows of steps and writes a file for each. A write error is logged, and training continues.

    Args:
        logdir: Folder of the job, local or remote; traces go to ``profile/`` in it.
        windows: Steps to trace.
        make_profiler: Creates the profiler of one window.
    """

    def __init__(
        self,
        logdir: str,
        windows: ProfileWindows | None = None,
        *,
        make_profiler: Callable[[], Profiler] = make_torch_profiler,
    ) -> None:
        self._logdir = str(logdir)
        self._windows = windows or ProfileWindows()
        self._make_profiler = make_profiler
        self._profiler: Profiler | None = None
        self._first_step = 0

    def after_create_session(self, session: HookedSession) -> None:
        """Ensures that an open window is written when the session closes."""
        session.on_close(lambda: self._end_window(session.global_step))

    def before_run(self, context: StepContext) -> None:
        """Opens and closes windows."""
        step = context.global_step
        inside = self._windows.contains(step)
        if self._profiler is not None and not inside:
            self._end_window(step)
        if inside and self._profiler is None:
            self._first_step = step
            profiler = self._make_profiler()
            profiler.start()
            self._profiler = profiler  # only a started one can be stopped

    def _end_window(self, step: int) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        path = join(self._logdir, "profile", f"step_{self._first_step}-{step - 1}.json")
        try:
            with tempfile.TemporaryDirectory() as folder:
                local = Path(folder) / "trace.json"
                profiler.export_chrome_trace(str(local))
                CopyFile(str(local), path, skip_nonexist=False)
        except Exception:  # noqa: BLE001 - a failed trace must not end a training
            _log.exception("profiler: cannot write %s", path)
        else:
            _log.info("profiler: trace of steps %d to %d is in %s", self._first_step, step - 1, path)


class CudaProfilerHook(Hook):
    """Selects the steps that CUDA's profiler captures.

    For a run under ``nsys profile --capture-range=cudaProfilerApi``.

    Args:
        from_to: The steps, as ``"start,end"``: the first that is captured and the first that is not.
        start: Starts the capture.
        stop: Stops the capture.
    """

    def __init__(
        self, from_to: str, *, start: Callable[[], object] | None = None, stop: Callable[[], object] | None = None
    ) -> None:
        self._start_step, self._end_step = _parse_range(from_to)
        if start is None and not torch.cuda.is_available():
            raise FailedPreconditionError("CudaProfilerHook: there is no CUDA device to profile; use ProfilerHook")
        self._start = start or torch.cuda.profiler.start
        self._stop = stop or torch.cuda.profiler.stop
        self._running = False

    def after_create_session(self, session: HookedSession) -> None:
        """Ensures that a running capture stops when the session closes."""
        session.on_close(self._end)

    def before_run(self, context: StepContext) -> None:
        """Starts and stops the capture."""
        inside = self._start_step <= context.global_step < self._end_step
        if inside and not self._running:
            self._start()
            self._running = True
        elif not inside:
            self._end()

    def _end(self) -> None:
        if self._running:
            self._running = False
            self._stop()


def _parse_range(from_to: str) -> tuple[int, int]:
    parts = [part.strip() for part in from_to.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts) or int(parts[0]) >= int(parts[1]):
        raise ValueError(f"CudaProfilerHook: expected 'start,end' with 0 <= start < end, got {from_to!r}")
    return int(parts[0]), int(parts[1])
