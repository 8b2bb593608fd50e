"""Saves and stops of a synchronous run, controlled by files in the model directory.

Rank 0 checks for the files every `step_interval` steps, and broadcasts the result: all ranks make the same steps, so
all save and stop at the same one. The files switch a timer, usually the one of the saving hook.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import torch

from monolith import collective
from monolith.clock import SystemClock
from monolith.errors import OpError
from monolith.files import exists, join, text_files
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext


_log = logging.getLogger(__name__)


class AgreeingHook(Hook):
    """Base class of hooks whose checks run on rank 0."""

    def begin(self) -> None:
        """Joins the run of the launcher, if this process has not: without a launcher it is a run of one rank."""
        collective.init()


def agree(look: Callable[[], Sequence[int]], otherwise: Sequence[int]) -> list[int]:
    """Returns the result of `look` on rank 0, on every rank; a collective call.

    Args:
        look: Called on rank 0 only. Its exceptions are logged, so that the other ranks do not wait forever.
        otherwise: Result if `look` raises; of the same length.
    """
    values = list(otherwise)
    if collective.rank() == 0:
        try:
            values = list(look())
        except (OSError, OpError, ValueError) as error:
            _log.warning("cannot check for control files: %s", error)
    return [int(value) for value in collective.broadcast(torch.tensor(values, dtype=torch.int64))]


ONLINE_FILE = "ONLINE"
SAVING_HOURS = range(18, 20)
"""UTC hours in which a run that is controlled by files saves by its timer: traffic is low then."""


class SwitchedTimer(Protocol):
    """A timer that can be switched; a `SecondOrStepTimerWithTideSetting`."""

    def enable(self) -> None:
        """Allows the timer to be due."""

    def disable(self) -> None:
        """Prevents the timer from being due."""

    def trigger_next(self) -> None:
        """Makes the timer due at the next check."""


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
        flags = [exists(join(self._model_dir, f"{action}_{step}")) for action in ("dump", "stop")]
        hour = datetime.fromtimestamp(self._clock.now(), UTC).hour
        return (*map(int, flags), int(hour in SAVING_HOURS))  # type: ignore[return-value]


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


REQUEST_TIME: Final = "req_time"
"""The column with the Unix seconds of an example's request, and the collection of a step's values."""
LIMIT_FILE = "limit_req_time"
_UNKNOWN = -1


def newest_request_time(session: HookedSession) -> int | None:
    """Returns the newest time in the last addition to the session's collection ``req_time``, or None."""
    added = session.collections.get(REQUEST_TIME)
    if not added:
        return None
    times = added[-1]
    if not hasattr(times, "numel"):
        return int(times)
    return int(times.max()) if times.numel() else None


class ReqTimeControlDumpHook(AgreeingHook):
    """Saves and stops when the request time of the data reaches the number in a file ``limit_req_time``.

    Args:
        model_dir: Folder of the file, local or remote.
        target_timer: Timer of the saves.
        step_interval: Steps from one check to the next.
        req_time: Reads the newest request time, Unix seconds, of the last step; by default from the session's
            collections.
    """

    def __init__(
        self,
        model_dir: str,
        target_timer: SwitchedTimer,
        step_interval: int = 1000,
        *,
        req_time: Callable[[HookedSession], int | None] = newest_request_time,
    ) -> None:
        if step_interval < 1:
            raise ValueError(f"ReqTimeControlDumpHook: step_interval must be >= 1, got {step_interval}")
        self._path = join(str(model_dir), LIMIT_FILE)
        self._timer = target_timer
        self._step_interval = step_interval
        self._req_time = req_time

    def after_run(self, context: StepContext) -> None:
        """Checks every `step_interval` steps."""
        if context.global_step % self._step_interval:
            return
        session = context.session
        unknown = (_UNKNOWN, _UNKNOWN)
        req_time, limit = agree(lambda: (_or_unknown(self._req_time(session)), self._read_limit()), unknown)
        if _UNKNOWN in {req_time, limit} or req_time < limit:
            return
        _log.info("step %d: request time %d has reached the limit %d; stopping", context.global_step, req_time, limit)
        self._timer.enable()
        self._timer.trigger_next()
        context.stop_together()

    def _read_limit(self) -> int:
        text = text_files.read_text(self._path)
        if text is None:
            return _UNKNOWN
        try:
            limit = int(text)
        except ValueError:
            limit = _UNKNOWN
        if limit < 0:
            raise ValueError(f"{self._path}: expected a Unix time in seconds, got {text.strip()!r}")
        return limit


def _or_unknown(value: int | None) -> int:
    return _UNKNOWN if value is None else value
