"""Saves and stops of a synchronous run, controlled by marker files in the model directory.

Rank 0 checks for the files every `step_interval` steps, and broadcasts the result: all ranks make the same steps, so
all save and stop at the same one. The files switch a timer, usually the one of the saving hook.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from monolith.clock import SystemClock
from monolith.files import exists, join
from monolith.hooks._rank_zero import AgreeingHook, agree

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.hook import StepContext

__all__ = ["SwitchedTimer", "SyncTrainingForceDumpHook", "SyncTrainingSaverControlHook"]

_log = logging.getLogger(__name__)

ONLINE_FILE = "ONLINE"
SAVING_HOURS = range(18, 20)
"""UTC hours in which a run that is controlled by files saves by its timer: traffic is low then."""


class SwitchedTimer(Protocol):
    """A timer that can be switched; a `SecondOrStepTimerWithTideSetting`."""

    def enable(self) -> None:
        """Allows the timer to be due."""
        ...

    def disable(self) -> None:
        """Prevents the timer from being due."""
        ...

    def trigger_next(self) -> None:
        """Makes the timer due at the next check."""
        ...


class SyncTrainingForceDumpHook(AgreeingHook):
    """Saves at step n if a file ``dump_<n>`` exists; saves and stops if ``stop_<n>`` exists.

    Otherwise the timer is enabled from 18:00 to 20:00 UTC only.

    Args:
        model_dir: Folder of the files, local or remote.
        target_timer: Timer of the saves.
        step_interval: Steps from one check to the next; the numbers of the files are multiples of it.
        clock: Time of day; the clock of rank 0 decides.
    """

    def __init__(
        self, model_dir: str, target_timer: SwitchedTimer, step_interval: int = 100, *, clock: Clock | None = None
    ) -> None:
        self._model_dir = str(model_dir)
        self._timer = target_timer
        self._step_interval = _require_interval(step_interval)
        self._clock = clock or SystemClock()

    def after_run(self, context: StepContext) -> None:
        """Checks for files every `step_interval` steps."""
        step = context.global_step
        if step % self._step_interval:
            return
        should_dump, should_stop, is_hour = agree(lambda: self._look(step), (0, 0, 0))
        if should_dump or should_stop:
            _log.info("step %d: %s by a file in %s", step, "stop" if should_stop else "save", self._model_dir)
            self._timer.enable()
            self._timer.trigger_next()
        elif is_hour:
            self._timer.enable()
        else:
            self._timer.disable()
        if should_stop:
            context.stop_together()

    def _look(self, step: int) -> tuple[int, int, int]:
        found = [exists(join(self._model_dir, f"{action}_{step}")) for action in ("dump", "stop")]
        hour = datetime.fromtimestamp(self._clock.now(), UTC).hour
        return (*map(int, found), int(hour in SAVING_HOURS))  # type: ignore[return-value]


class SyncTrainingSaverControlHook(AgreeingHook):
    """Enables a timer only while a file ``ONLINE`` exists.

    Args:
        model_dir: Folder of the file, local or remote.
        target_timer: The timer to switch.
        step_interval: Steps from one check to the next.
    """

    def __init__(self, model_dir: str, target_timer: SwitchedTimer, step_interval: int = 100) -> None:
        self._path = join(str(model_dir), ONLINE_FILE)
        self._timer = target_timer
        self._step_interval = _require_interval(step_interval)

    def after_run(self, context: StepContext) -> None:
        """Checks for the file every `step_interval` steps."""
        if context.global_step % self._step_interval:
            return
        (online,) = agree(lambda: [int(exists(self._path))], [0])
        if online:
            self._timer.enable()
        else:
            self._timer.disable()


def _require_interval(step_interval: int) -> int:
    if step_interval < 1:
        raise ValueError(f"control by files: step_interval must be >= 1, got {step_interval}")
    return step_interval
