"""Runs the steps of a session to their end: of the data, of its steps, or of a job; starts over after a loss."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal

import torch

from monolith.errors import (
    AbortedError,
    FailedPreconditionError,
    FileUnavailableError,
    OpError,
    OutOfRangeError,
    UnavailableError,
)
from monolith.train.input.jobs import LocalJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.checkpoint import Saver, TrainState
    from monolith.clock import Clock
    from monolith.job import JobState
    from monolith.train.history import History
    from monolith.train.input.jobs import RankInputs
    from monolith.train.job_part import JobPart
    from monolith.train.rank_part import RankPart
    from monolith.train.session import Session
    from monolith.train.task import Task

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_LINE_SECONDS = 60.0


class JobEnd:
    """The end of a worker that has no more to train. Only the training thread may use it.

    Each worker trains an input of its own. The chief waits for all workers, and they for its last save: until then the
    loss of a server may roll all back to a checkpoint, and all workers train again.

    Args:
        part: Part of this worker in the job.
        session: Its session.
        while_waiting: Called about once a second while the chief waits.
    """

    def __init__(self, part: JobPart, session: Session, *, while_waiting: Callable[[], None]) -> None:
        self._part = part
        self._session = session
        self._while_waiting = while_waiting
        self._adopted: int | None = None

    def has_more(self, ended_by: Literal["data", "stop"]) -> bool:
        """Returns whether there is more to train: the input of a lost worker. Otherwise waits until this one may end.

        All pushes of this worker are applied by then.
        """
        self._session.settle()
        client = self._part.client
        if ended_by == "data":
            self._finish()
            if self._adopt():
                return True
        else:
            client.leave()
        if self._part.is_chief:
            has_more = self._wait(may_adopt=ended_by == "data")
            self._take_steps()
            return has_more
        return ended_by == "data" and self._wait_for_the_end()

    def begin_again(self) -> None:
        """Resets the state for a rebuilt session, which trains its own unfinished input before that of others."""
        if self._adopted is not None:
            with suppress(OpError):  # a restarted coordinator has no record of it
                self._part.client.release_worker(self._adopted, finished=False)
            self._adopted = None
            self._session.be_worker(self._part.client.index)

    def _take_steps(self) -> None:
        """Sets the step of the chief's last checkpoint to the one that all workers have reached."""
        state = self._session.state
        state.global_step = max(state.global_step, self._part.client.state.global_step)

    def _finish(self) -> None:
        if self._adopted is None:
            self._part.client.finish()
            return
        self._part.client.release_worker(self._adopted, finished=True)
        self._adopted = None

    def _adopt(self) -> bool:
        number = self._part.client.adopt_worker()
        if number is None:
            return False
        _log.warning(
            "worker %d is no longer in the job: worker %d trains the rest of its input", number, self._part.client.index
        )
        self._adopted = number
        self._session.take_worker(number)
        return True

    def _wait_for_the_end(self) -> bool:
        """Waits for the last save after the end of the input. Returns True if it has adopted a lost worker.

        Raises:
            AbortedError: all workers were rolled back to a checkpoint meanwhile.
            UnavailableError: server 0 is unreachable.
        """
        clock, client = self._part.clock, self._part.client
        client.flags.set(client.index, False)  # barriers do not wait for it
        generation, gone_since = client.state.generation, None
        while not (client.state.ended or self._part.wants_to_stop):
            client.require_connected()
            if client.state.generation != generation:
                raise AbortedError(f"worker {client.index}: all servers were put back to a checkpoint; it trains again")
            if client.state.adoptable and self._adopt():
                return True
            now = clock.monotonic()
            gone_since = None if _is_alive(client.state, 0) else gone_since if gone_since is not None else now
            if gone_since is not None and now - gone_since >= self._part.settings.chief_timeout_seconds:
                _log.warning("worker %d: ends without the chief, gone for %.0f s", client.index, now - gone_since)
                return False
            client.wait_for(_changed_since(client.state.version), timeout_seconds=_LOOK_SECONDS)
        return False

    def _wait(self, *, may_adopt: bool) -> bool:
        """Waits, as the chief, for the other workers. Returns True if it has adopted a lost worker."""
        clock, client = self._part.clock, self._part.client
        next_line = clock.monotonic()
        gone_since = None
        while missing := _unfinished(client.state, may_adopt=may_adopt):
            client.require_connected()
            now = clock.monotonic()
            if may_adopt and client.state.adoptable and self._adopt():
                return True
            alive = [number for number in missing if _is_alive(client.state, number)]
            gone_since = None if alive else gone_since if gone_since is not None else now
            # A stopping job does not restart workers.
            patience = 0.0 if self._part.wants_to_stop else self._part.settings.chief_timeout_seconds
            if gone_since is not None and now - gone_since >= patience:
                _log.warning("ending without workers %s, gone for %.0f s", missing, now - gone_since)
                return False
            if now >= next_line:
                _log.info("waiting for workers %s to end", missing)
                next_line = now + _LINE_SECONDS
            client.wait_for(_changed_since(client.state.version), timeout_seconds=_LOOK_SECONDS)
            self._take_steps()
            self._while_waiting()
        return False


def _unfinished(state: JobState, *, may_adopt: bool) -> list[int]:
    """Returns the workers that may still push; in a stopping job lost workers do not restart.

    Includes the shares of removed workers while another worker trains them, or may start to.
    """
    done = state.finished | state.left
    workers = [
        number
        for number in range(1, state.num_workers)
        if number not in done and (_is_alive(state, number) or not state.stop_requested)
    ]
    adopted = {member.index for member in state.members if member.role == "worker" and member.alive}
    others = adopted | (state.adoptable if may_adopt else set())
    return workers + sorted(number for number in others - done if number >= state.num_workers)


def _is_alive(state: JobState, number: int) -> bool:
    member = state.member("worker", number)
    return member is not None and member.alive


def _changed_since(version: int) -> Callable[[JobState], bool]:
    return lambda state: state.version != version


MOST_ATTEMPTS = 20
"""How often a session is rebuilt from one checkpoint: about seven minutes for an unreachable peer."""
_LONGEST_WAIT_SECONDS = 30.0


class Recovery:
    """Rebuilds a session after each failure, with growing backoff while it makes no progress.

    A run that keeps training the same steps without reaching its next checkpoint ends with an error, so that its
    supervisor notices. In a job there is no such limit: it waits for the other processes and looks up their new
    addresses until it is requested to stop.

    Args:
        session: The training session.
        clock: Measures the waits.
        job: The part of this process in a job; None: a single process.
    """

    def __init__(self, session: Session, *, clock: Clock, job: JobPart | None = None) -> None:
        self._session = session
        self._clock = clock
        self._job = job
        self._refused_at: tuple[int, int] | None = None
        self._failures_in_a_row, self._failed_at = 0, -1
        self._restored_at, self._attempts = session.global_step, 0

    def is_first_refusal(self) -> bool:
        """Returns whether this is the first refusal at this step: one may be caused by other processes, two are not."""
        generation = 0 if self._job is None else self._job.client.state.generation
        at = (self._session.global_step, generation)
        is_first, self._refused_at = at != self._refused_at, at
        return is_first

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
            if self._attempts == MOST_ATTEMPTS and self._job is None:
                raise type(error)(
                    f"session: started over {MOST_ATTEMPTS} times from step {self._restored_at} without getting to"
                    f" another checkpoint; the last failure was: {error}"
                ) from error
            self._attempts += 1
            if waits:
                pause = self._clock.sleep if self._job is None else self._job.pause
                pause(min(2.0 ** (waits - 1), _LONGEST_WAIT_SECONDS))
            try:
                if self._job is not None:
                    self._job.find_servers()
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
    """One call of `Trainer.train`. Only the training thread may use it.

    Args:
        task: Provides the input.
        session: Runs the steps.
        saver: Saves the last complete step when an error ends the run; None: it is not saved.
        history: Records how the run ended.
        clock: Measures waits.
        job: The part of this process in a job; None: a single process.
        ranks: Its part in a synchronous run.
        while_waiting: Called about once a second while a chief waits for its workers.
    """

    def __init__(  # noqa: PLR0913 - what meets in a run; all by name
        self,
        task: Task,
        session: Session,
        saver: Saver | None,
        *,
        history: History,
        clock: Clock,
        job: JobPart | None = None,
        ranks: RankPart | None = None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._task = task
        self._session = session
        self._saver = saver
        self._history = history
        self._job = job
        self._ranks = ranks
        self._has_no_input = False
        self._recovery = Recovery(session, clock=clock, job=job)
        self._job_end = None if job is None else JobEnd(job, session, while_waiting=while_waiting)

    def run(self) -> None:
        """Runs until there is nothing more to do.

        Raises:
            BaseException: what ended training. The state of the last complete step was saved before, if there was one.
        """
        first_step = self._session.global_step
        while True:
            try:
                ended_by = self._run_steps()
                if self._job_end is not None and self._job_end.has_more(ended_by):
                    continue
                if ended_by == "data" and self._goes_on_alone():
                    continue
            except BaseException as error:
                if isinstance(error, OpError) and self._is_recoverable(error):
                    if self._job_end is not None:
                        self._job_end.begin_again()
                    self._recovery.start_over(error)
                    continue
                self._save_after(error)
                raise
            self._end(ended_by, first_step)
            return

    def _run_steps(self) -> Literal["data", "stop"]:
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
        return () if self._has_no_input else self._task.ctx.shared(lambda: self._task.input_fn("train"))

    def _tell_no_input(self) -> None:
        training = self._task.ctx.training
        count, shares = training.num_workers, training.for_number(self._session.worker_index)
        if self._has_no_input or count == 1:
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

    def _goes_on_alone(self) -> bool:
        """Returns whether this process has inputs left to finish of a run that several processes started."""
        if self._ranks is not None and self._ranks.inputs is not None:
            return self._goes_on_together(self._ranks, self._ranks.inputs)
        job = self._task.ctx.training.job
        if not isinstance(job, LocalJob):
            return False
        self._session.settle()
        job.finish(self._session.worker_index)
        number = job.adopt_worker()
        if number is not None:
            _log.info("session: continues with the input of worker %d, which is no longer in the job", number)
            self._session.take_worker(number)
        return number is not None

    def _goes_on_together(self, ranks: RankPart, inputs: RankInputs) -> bool:
        """Assigns unfinished inputs of earlier workers to ranks; returns whether there are any."""
        session = self._session
        session.settle()
        if not self._has_no_input:
            inputs.finish(session.worker_index)
        number = inputs.adopt_worker()
        if all(adopted is None for adopted in ranks.words.gather("inputs that are left", number)):
            return False
        self._has_no_input = number is None
        if number is not None:
            session.take_worker(number)
        return True

    @property
    def _is_one_of_many(self) -> bool:
        return self._ranks is not None and not self._ranks.is_alone

    def _is_recoverable(self, error: OpError) -> bool:
        if self._is_one_of_many or (self._ranks is not None and not self._ranks.shares_rows):
            return False  # the launcher restarts all ranks: none of them can restart alone
        if self._job is not None and self._job.is_replaced():
            return False  # another process has its number
        # Servers that were rolled back to a checkpoint refuse calls of workers that were not.
        is_refused = self._job is not None and isinstance(error, FailedPreconditionError)
        return is_preemption(error) or (is_refused and self._recovery.is_first_refusal())

    def _end(self, by: Literal["data", "stop"], first_step: int) -> None:
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
        if self._saver is None or (self._job is not None and not self._job.is_chief):
            return
        step = session.global_step
        if self._ranks is not None and not self._ranks.is_common(error):
            _log.warning("session: step %d is not saved after %r: the other ranks cannot take part", step, error)
            return
        if not session.is_whole or not _is_finite(session.state):
            _log.warning("session: step %d is not saved after %r: its state is not that of a good step", step, error)
            return
        if session.last is None and not self._is_one_of_many:  # what the run began with is on disk, or is nothing
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


_errors: tuple[type[OpError], ...] = (AbortedError, UnavailableError)


def preemption_errors() -> tuple[type[OpError], ...]:
    """Returns the error classes that count as preemption, also available as ``monolith.train.PREEMPTION_ERRORS``."""
    return _errors


def is_preemption(error: BaseException) -> bool:
    """Returns whether an error means the loss of another process; failed file access does not."""
    return isinstance(error, _errors) and not isinstance(error, FileUnavailableError)


def enable_monkey_patch() -> None:
    """Narrows preemption errors to `AbortedError`: an unavailable server then ends the session, and the runner decides.

    ByteDance Monolith patched TensorFlow for this; here it is a setting of this process.
    """
    global _errors  # noqa: PLW0603 - the setting
    _errors = (AbortedError,)
