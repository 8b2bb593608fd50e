"""Runs the steps of a session to their end: of the data, of its steps, or of a job; starts over after a loss."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import OpError, OutOfRangeError
from monolith.train._preemption import is_preemption

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.checkpoint import Saver, TrainState
    from monolith.clock import Clock
    from monolith.train.history import History
    from monolith.train.session import Session
    from monolith.train.strategies.strategy import EndedBy, Strategy
    from monolith.train.task import Task

_log = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 30.0


class Recovery:
    """Rebuilds a session after each failure, with growing backoff while it makes no progress.

    A run that keeps training the same steps without reaching its next checkpoint ends with an error, so that its
    supervisor notices. A strategy may have no such limit, if it waits for other processes.
    """

    def __init__(self, session: Session, strategy: Strategy, *, clock: Clock) -> None:
        self._session = session
        self._strategy = strategy
        self._clock = clock
        self._failures_in_a_row, self._failed_at = 0, -1
        self._restored_at, self._attempts = session.global_step, 0

    def start_over(self, error: OpError) -> None:
        """Rebuilds the session from its last checkpoint.

        Raises:
            OpError: of the class of the last failure, if that happened too often without a newer checkpoint.
        """
        step = self._session.global_step
        self._failures_in_a_row = self._failures_in_a_row + 1 if step == self._failed_at else 0
        self._failed_at = step
        _log.warning("session: step %d failed (%s); starting over in place", step, error)
        self._rebuild(error)
        if self._session.global_step > self._restored_at:
            self._restored_at, self._attempts = self._session.global_step, 0

    def _rebuild(self, error: OpError) -> None:
        waits = self._failures_in_a_row
        while True:
            if self._attempts == self._strategy.rebuild_limit:
                raise type(error)(
                    f"session: started over {self._attempts} times from step {self._restored_at} without getting to"
                    f" another checkpoint; the last failure was: {error}"
                ) from error
            self._attempts += 1
            if waits:
                self._strategy.pause(min(2.0 ** (waits - 1), _LONGEST_WAIT_SECONDS), clock=self._clock)
            try:
                self._strategy.reconnect()
                self._session.rebuild()
            except OpError as failure:
                if not is_preemption(failure):
                    raise
                error = failure
                waits += 1
                _log.warning("session: could not be made again (%s); trying once more", failure)
            else:
                return


class TrainingLoop:
    """One call of `Trainer.train`. Only the training thread may use it."""

    def __init__(
        self,
        task: Task,
        session: Session,
        saver: Saver | None,
        *,
        strategy: Strategy,
        history: History,
        clock: Clock,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._task = task
        self._session = session
        self._saver = saver
        self._strategy = strategy
        self._history = history
        self._while_waiting = while_waiting
        self._recovery = Recovery(session, strategy, clock=clock)

    def run(self) -> None:
        """Runs until there is nothing more to do.

        Raises:
            BaseException: what ended training. The state of the last complete step was saved before, if there was one.
        """
        first_step = self._session.global_step
        while True:
            try:
                ended_by = self._run_steps()
                if self._strategy.has_more_input(self._session, ended_by, while_waiting=self._while_waiting):
                    continue
            except BaseException as error:
                if isinstance(error, OpError) and self._strategy.is_recoverable(error, self._session.global_step):
                    self._strategy.begin_again(self._session)
                    self._recovery.start_over(error)
                    continue
                self._save_after(error)
                raise
            self._end(ended_by, first_step)
            return

    def _run_steps(self) -> EndedBy:
        session = self._session
        is_over = session.stop_requested
        try:
            shares = self._task.ctx.training.for_number(session.worker_index)
            with (
                self._task.ctx.reading_as(shares),
                nullcontext() if is_over else session.feed(self._input(), when_empty=self._tell_no_input) as feed,
            ):
                while feed is not None and not session.stop_requested:
                    session.run_next(feed)
        except OutOfRangeError:
            return "data"
        return "stop"

    def _input(self) -> Any:
        """Returns the input of this process; empty if only other ranks have inputs of earlier workers to finish."""
        return self._task.ctx.shared(lambda: self._task.input_fn("train")) if self._strategy.has_input else ()

    def _tell_no_input(self) -> None:
        training = self._task.ctx.training
        count, shares = training.num_workers, training.for_number(self._session.worker_index)
        if not self._strategy.has_input or count == 1:
            return
        if shares.is_empty:
            _log.warning(
                "input: worker %d of %d has nothing to read: the run began with %d, whose shares of the input are"
                " resumed; start %d, or train with enable_dynamic_sharding from the beginning",
                self._session.worker_index,
                count,
                shares.num_workers,
                shares.num_workers,
            )
        else:
            _log.warning(
                "input: worker %d of %d has nothing to read: the input has fewer files, row groups, partitions or"
                " blocks than there are workers; start fewer workers, or divide the input into more files",
                self._session.worker_index,
                count,
            )

    def _end(self, by: EndedBy, first_step: int) -> None:
        step = self._session.global_step
        self._history.ended_by, self._history.num_steps = by, step - first_step
        if by == "data" and step and not self._history.num_steps:
            _log.warning(
                "session: the input has no more data after step %d, so nothing was trained; add data, or train on the"
                " same data again with another model_dir",
                step,
            )
        elif by == "data":
            _log.info("session: the input ended at step %d", step)

    def _save_after(self, error: BaseException) -> None:
        """Saves the last complete step of a run that an error ends, unless that would do harm."""
        session = self._session
        if self._saver is None:
            return
        step = session.global_step
        if not self._strategy.fails_alike(error):
            _log.warning("session: step %d is not saved after %r: the other ranks cannot take part", step, error)
            return
        if not session.is_whole or not _is_finite(session.state):
            _log.warning("session: step %d is not saved after %r: its state is not that of a good step", step, error)
            return
        if (
            session.last is None and not self._strategy.follows_steps
        ):  # what the run began with is on disk, or is nothing
            _log.info("session: nothing is saved after %r: it came before the first step", error)
            return
        try:
            session.settle()
            self._saver.save(session.state, background=False)
        except Exception:  # noqa: BLE001 - the first error is the one to raise
            _log.exception("session: step %d could not be saved after %r", step, error)


def _is_finite(state: TrainState) -> bool:
    parameters = [] if state.model is None else list(state.model.parameters())
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)
