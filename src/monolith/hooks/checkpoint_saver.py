"""Saves a session at an interval of steps or seconds, on demand, and at the end; not right after its creation.

The order of one save::

    guards before_save                          errors are logged and ignored
        listeners before_save                   two attempts in all: an OpError of any of these
        the saver                               is counted, and the attempt is repeated once
        listeners after_save
    guards after_save                           also after a failure

With a saver that writes in the background, the guards end when the cut was taken; listeners are called at the end of
the step in which the commit is noticed.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from monolith.checkpoint import PendingSave, SavedCheckpoint, Saver, TrainState
from monolith.config import Config, config, keywords_of
from monolith.errors import OpError
from monolith.hook import Hook, HookedSession, StepContext
from monolith.hooks.listeners import SaverListener
from monolith.hooks.timer import SecondOrStepTimer, SecondOrStepTimerWithTideSetting
from monolith.observe import MetricClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.hooks.listeners import SaveGuard

logger = logging.getLogger(__name__)

ATTEMPTS = 2


@config
class SaverHookConfig(Config):
    """Keyword arguments of `NoFirstSaveCheckpointSaverHook`."""

    state: TrainState | None = None
    """State to save; None: the session's own `state`."""
    save_secs: float | None = None
    """Seconds between saves."""
    save_steps: int | None = None
    """Steps between saves. Neither: only on demand and at the end."""
    timer: SecondOrStepTimer | None = None
    """Custom timer instead of these, such as one with a tide window."""
    listeners: Sequence[SaverListener] = ()
    """Called around each attempt."""
    guard_saver_listeners: Sequence[SaveGuard] = ()
    """Called around each save, also around a failed one."""
    no_first_save: bool = True
    """Whether to skip saving a state that was just created or restored."""
    final_save: Literal["if_moved", "always", "never"] | None = None
    """Save at the end of training; None: "if_moved" (the step has changed), "never" for a dense-only saver."""
    ignore_save_errors: bool = False
    """Whether to log the error of the second attempt and continue training, as runs on live traffic do."""
    full_saver_hook: NoFirstSaveCheckpointSaverHook | None = None
    """For a dense-only saver: a step that this hook has saved is not saved again."""
    metrics: MetricClient | None = None
    """Client for counters and timers."""


@dataclass(frozen=True, slots=True)
class _InBackground:
    """A save whose cut was taken and whose commit is pending."""

    pending: PendingSave
    step: int
    begun: float
    attempt: int


class NoFirstSaveCheckpointSaverHook(Hook):
    """Saves checkpoints. Steps run in one thread; `trigger_save` may be called from another one, between two steps.

    Args:
        saver: Writes checkpoints. The hook begins it, and closes it with the session.
        options: The fields of `SaverHookConfig`, by name.
    """

    @keywords_of(SaverHookConfig)
    def __init__(self, saver: Saver, options: SaverHookConfig) -> None:
        self._saver = saver
        self._options = options
        self.timer = _timer(options)
        """Timer of the saves; other hooks may enable and disable it."""
        self._mode = "dense_only" if saver.dense_only else "full"
        self._final_save = options.final_save or ("never" if saver.dense_only else "if_moved")
        self._metrics = options.metrics or MetricClient()
        self._lock = threading.RLock()
        self._in_background: _InBackground | None = None
        self.last_saved_step: int | None = None
        """Step of the last checkpoint that was committed by this hook."""
        self._step_on_disk: int | None = None
        self._first = True

    # The hook

    def begin(self) -> None:
        """Claims the model directory."""
        self._saver.begin()
        for listener in self._all_listeners():
            listener.begin()

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the interval; saves immediately only without `no_first_save`."""
        session.on_close(self._let_go)
        state = self._state(session)
        self._saver.create_state_file()
        self._saver.setup_ps_initialized_state(state)
        self._step_on_disk = session.global_step
        if not self._options.no_first_save and self._first:
            self._save(session, session.global_step, ignore_save_errors=self._options.ignore_save_errors)
        self._first = False
        if self.timer is not None:
            self.timer.update_last_triggered_step(session.global_step)

    def after_run(self, context: StepContext) -> None:
        """Saves when the timer is due."""
        step = context.global_step
        stop = self._in_background is not None and self._finish_background(context.session, wait=False)
        if self.timer is not None and self.timer.should_trigger_for_step(step):
            self.timer.update_last_triggered_step(step)
            stop |= self._save(context.session, step, ignore_save_errors=self._options.ignore_save_errors)
        if stop:
            context.request_stop()

    def end(self, session: HookedSession) -> None:
        """Writes the last checkpoint and waits for its commit."""
        step = session.global_step
        with self._lock:
            self._finish_background(session, wait=True)
            moved = step != self._step_on_disk
            if self._final_save == "always" or (self._final_save == "if_moved" and moved):
                self._save(session, step, ignore_save_errors=self._options.ignore_save_errors, blocking=True)
        for listener in self._all_listeners():
            listener.end(session, step)

    def trigger_save(self, session: HookedSession, ignore_save_errors: bool = False) -> SavedCheckpoint | None:
        """Saves now and waits for the commit. The interval to the next save restarts.

        Args:
            session: Session to save; its thread must not be inside a step.
            ignore_save_errors: Log an error of the second attempt instead of raising it.

        Returns:
            The committed checkpoint; None if the save failed and errors are ignored.
        """
        with self._lock:
            step = session.global_step
            if self.timer is not None:
                self.timer.update_last_triggered_step(step)
            self._save(session, step, ignore_save_errors=ignore_save_errors, blocking=True)
            return self._saver.last_saved if self.last_saved_step == step else None

    # One save

    def _save(
        self, session: HookedSession, step: int, *, ignore_save_errors: bool, blocking: bool | None = None
    ) -> bool:
        """Runs guards around up to two attempts; returns whether a listener requested a stop."""
        with self._lock:
            stop = self._finish_background(session, wait=True)
            if self._is_saved_already(step):
                return stop
            self._tell_guards("before_save", session, step)
            try:
                return stop | self._attempts(session, step, ignore_save_errors=ignore_save_errors, blocking=blocking)
            finally:
                self._tell_guards("after_save", session, step)

    def _is_saved_already(self, step: int) -> bool:
        if not self._saver.dense_only:
            return False
        full = self._options.full_saver_hook
        return step == self.last_saved_step or (full is not None and full.last_saved_step == step)

    def _attempts(
        self,
        session: HookedSession,
        step: int,
        *,
        ignore_save_errors: bool,
        first: int = 1,
        blocking: bool | None = None,
    ) -> bool:
        for attempt in range(first, ATTEMPTS + 1):
            try:
                return self._attempt(session, step, attempt, blocking=blocking)
            except OpError as error:
                self._count_failure(error, step, attempt)
                if attempt == ATTEMPTS and not ignore_save_errors:
                    raise
        return False

    def _attempt(self, session: HookedSession, step: int, attempt: int, *, blocking: bool | None) -> bool:
        begun = time.monotonic()
        for listener in self._options.listeners:
            listener.before_save(session, step)
        saved = self._saver.save(self._state(session), background=False if blocking else None)
        if isinstance(saved, PendingSave):
            self._in_background = _InBackground(saved, step, begun, attempt)
            return False
        return self._committed(session, step, begun)

    def _committed(self, session: HookedSession, step: int, begun: float) -> bool:
        stop = [bool(listener.after_save(session, step)) for listener in self._options.listeners]
        self._count_commit(step, begun)
        return any(stop)

    def _count_commit(self, step: int, begun: float) -> None:
        self.last_saved_step = self._step_on_disk = step
        self._metrics.emit_counter("save_checkpoint", 1, {"mode": self._mode})
        self._metrics.emit_timer("save_checkpoint_time", time.monotonic() - begun, {"mode": self._mode})

    def _finish_background(self, session: HookedSession, *, wait: bool) -> bool:
        """Completes a save in the background. A failed one is repeated with the current state."""
        with self._lock:
            waiting = self._in_background
            if waiting is None or not (wait or waiting.pending.done):
                return False
            self._in_background = None
            try:
                self._saver.wait()
                return self._committed(session, waiting.step, waiting.begun)
            except OpError as error:
                self._count_failure(error, waiting.step, waiting.attempt)
                ignored = self._options.ignore_save_errors
                if waiting.attempt >= ATTEMPTS:
                    if not ignored:
                        raise
                    return False
            # The caller waits for the commit, so a save in the background gains nothing.
            return self._attempts(
                session,
                session.global_step,
                ignore_save_errors=ignored,
                first=waiting.attempt + 1,
                blocking=True if wait else None,
            )

    def _let_go(self) -> None:
        """Closes the saver with a session. A pending save is counted by its result, and its error is not raised.

        `end` has waited for it, or the session has failed with an error of its own.
        """
        with self._lock:
            waiting, self._in_background = self._in_background, None
            try:
                self._saver.close()
            except OpError as error:
                if waiting is None:
                    raise
                self._count_failure(error, waiting.step, waiting.attempt)
            else:
                if waiting is not None:
                    self._count_commit(waiting.step, waiting.begun)

    def _count_failure(self, error: OpError, step: int, attempt: int) -> None:
        self._metrics.emit_counter("save_checkpoint_failed", 1, {"mode": self._mode})
        logger.warning("saving step %d: attempt %d of %d failed: %s", step, attempt, ATTEMPTS, error)

    def _tell_guards(self, moment: str, session: HookedSession, step: int) -> None:
        for guard in self._options.guard_saver_listeners:
            try:
                getattr(guard, moment)(session, step)
            except Exception:  # a guard must not prevent a save or stop a run
                logger.exception("saving step %d: %s of %r failed", step, moment, guard)

    def _all_listeners(self) -> list[SaverListener]:
        guards = [guard for guard in self._options.guard_saver_listeners if isinstance(guard, SaverListener)]
        return [*self._options.listeners, *guards]

    def _state(self, session: HookedSession) -> TrainState:
        return self._options.state or session.state


def _timer(options: SaverHookConfig) -> SecondOrStepTimer | None:
    if options.timer is not None:
        if options.save_secs is not None or options.save_steps is not None:
            raise ValueError("NoFirstSaveCheckpointSaverHook: give either a timer or save_secs / save_steps, not both")
        return options.timer
    if options.save_secs is None and options.save_steps is None:
        return None
    return SecondOrStepTimerWithTideSetting(options.save_secs, options.save_steps)
