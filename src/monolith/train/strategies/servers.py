"""`ParameterServers`: one worker of a job, whose servers keep rows and dense weights and serve its coordinator."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from monolith.checkpoint import Saver
from monolith.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, OpError
from monolith.hook import Hook
from monolith.hooks import (
    BarrierHook,
    BarrierSaverListener,
    CustomGlobalStepWaiterHook,
    TrainingHooksHelper,
    slow_start_step,
)
from monolith.job import LostUpdates
from monolith.observe import MetricClient
from monolith.stop_request import StopRequest
from monolith.tables import RemoteRows
from monolith.train._preemption import is_preemption
from monolith.train._session_parts import SessionState
from monolith.train.device_placement import TABLES_ON_SERVERS
from monolith.train.saving.job_restoring import JOB, restore_in_job
from monolith.train.saving.resuming import resume
from monolith.train.saving.server_rows import server_stores
from monolith.train.strategies.job_end import JobEnd
from monolith.train.strategies.single import open_server_dense
from monolith.train.strategies.strategy import Strategy, refuse_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.checkpoint import TrainState
    from monolith.clock import Clock
    from monolith.cluster import Barrier
    from monolith.hook import StepContext
    from monolith.hooks import SaveGuard
    from monolith.job import JobClient, JobState
    from monolith.ps.client import PsCluster
    from monolith.tables import BatchStamp, Store, TableConfig
    from monolith.train._dense_step import DenseConfig, DenseStep
    from monolith.train.config.job_config import JobConfig
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.roles.server_watch import ServerReconnector
    from monolith.train.saving.resuming import OwnerProgress, Resumed
    from monolith.train.session import Session
    from monolith.train.strategies.strategy import EndedBy
    from monolith.train.task import Mode

_log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 10.0
_LOOK_SECONDS = 0.2
"""Interval in seconds at which a worker polls servers that are being restored."""


class ParameterServers(Strategy):
    """A worker of a job. Worker 0 is the chief, which restores, saves and ends the job.

    Args:
        cluster: The parameter servers.
        client: Connection of this process to the coordinator.
        settings: Timeouts of the job.
        servers_back: Looks up lost servers.
        clock: Measures waits.
        stop: Set when this process must stop; None: its own event.
    """

    rebuild_limit: int | None = None  # it waits for the other processes
    is_alone = False  # rows and weights are on the servers, which end with the job

    def __init__(
        self,
        cluster: PsCluster,
        client: JobClient,
        settings: JobConfig,
        *,
        servers_back: ServerReconnector,
        clock: Clock,
        stop: StopRequest | None = None,
    ) -> None:
        super().__init__()
        self.cluster = cluster
        self.client = client
        self.settings = settings
        self.clock = clock
        self.health_hook: Hook | None = None
        """Looks after the memory of the servers; of the chief."""
        self._servers_back = servers_back
        self._metrics = MetricClient()
        self._submitted: deque[BatchStamp] = deque(maxlen=64)
        self._acknowledged: BatchStamp | None = None
        self._generation = 0
        """Generation of the restore that the acknowledged batches belong to."""
        self._lost = LostUpdates[tuple[int, int, bool]]()
        self._others = 0
        self._stop = StopRequest() if stop is None else stop
        self._counters: list[Callable[[], int]] = []
        self._refused_at: tuple[int, int] | None = None
        self._end = JobEnd(weakref.proxy(self))  # a cycle would keep the stores open

    # The run

    def require_config(self, config: TrainerConfig) -> None:
        """Refuses tables on a GPU, in addition: the servers keep the rows."""
        super().require_config(config)
        if config.device.tables:
            raise ValueError(f"Trainer: {TABLES_ON_SERVERS}")

    def require_session(self, mode: Mode, dense: DenseConfig) -> None:
        """Refuses a session that trains nothing."""
        refuse_mode(mode, "servers keep dense weights")

    def join(self, config: TrainerConfig) -> TrainerConfig:
        """Begins to train; the client has joined the job."""
        self._refused_at = None
        self._end = JobEnd(weakref.proxy(self))
        return super().join(config)

    @property
    def is_chief(self) -> bool:
        """Returns whether this process is the chief, which restores and saves."""
        return self.client.index == 0

    # The parts of a session

    def store_factory(self) -> Callable[[Mapping[str, TableConfig]], Store]:
        """Makes the stores of one model on the servers."""
        return server_stores(self.cluster)

    def open_dense(
        self, state: TrainState, settings: DenseConfig, *, on_close: Callable[[Callable[[], None]], object]
    ) -> DenseStep:
        """Returns the update of the dense weights on the servers."""
        return open_server_dense(state, self.cluster, settings, on_close=on_close)

    def attach(self, state: TrainState) -> None:
        """Takes the stores and weights, whose answers have the steps of the other workers."""
        self._counters = _steps_of_others(state)

    # Input

    @property
    def inputs(self) -> JobClient:
        """Returns the inputs of the job."""
        return self.client

    def has_more_input(self, session: Session, ended_by: EndedBy, *, while_waiting: Callable[[], None]) -> bool:
        """Continues with the input of a lost worker, or waits until this worker may end."""
        return self._end.has_more(session, ended_by, while_waiting=while_waiting)

    # Saving

    def open_saver(self) -> Saver | None:
        """Returns the saver of the chief."""
        if self.config.model_dir is None or not self.is_chief:
            return None
        return Saver(self.config.model_dir, **self.saver_options(others_wait=True))

    # Hooks

    def hooks_before_savers(self) -> list[Hook]:
        """Returns hooks for the health of the servers, and for workers that wait until the model is restored."""
        health = [] if self.health_hook is None else [self.health_hook]
        return [*health, *self._in_step().training_chief_hooks]

    def hooks_after_savers(self) -> list[Hook]:
        """Returns the hooks of every worker: heartbeat, barrier, delayed start, and end of the job."""
        index, settings = self.client.index, self.settings
        hooks: list[Hook] = [*self._in_step().training_hooks, BarrierHook(index, self.client.barrier)]
        if settings.slow_start_steps and index:
            hooks.append(
                CustomGlobalStepWaiterHook(
                    slow_start_step(settings.slow_start_steps, index),
                    max_non_tide_wait_minute=settings.max_slow_start_wait_minutes,
                    global_step=lambda: self.client.state.global_step,
                )
            )
        return [*hooks, JobHook(self.client)]

    def save_guards(self) -> list[SaveGuard]:
        """Returns the barrier that holds the workers during a save."""
        patience = self.settings.max_pending_seconds_for_barrier
        return [BarrierSaverListener(self.client.barrier, max_pending_seconds=patience)]

    @property
    def barrier(self) -> Barrier:
        """Returns the barrier of the job."""
        return self.client.barrier

    def _in_step(self) -> TrainingHooksHelper:
        return TrainingHooksHelper(
            True,
            self.client.num_workers,
            self.client.index,
            chief_timeout_seconds=self.settings.chief_timeout_seconds,
            flags=self.client.flags,
        )

    # Failures

    def is_recoverable(self, error: OpError, step: int) -> bool:
        """Returns whether the loss of a server or the coordinator can be waited out."""
        if self.is_replaced():
            return False  # another process has its number
        # Servers that were rolled back to a checkpoint refuse calls of workers that were not.
        is_refused = isinstance(error, FailedPreconditionError)
        return is_preemption(error) or (is_refused and self._is_first_refusal(step))

    def begin_again(self, session: Session) -> None:
        """Gives the input of a lost worker back: the rebuilt session trains its own first."""
        self._end.begin_again(session)

    def pause(self, seconds: float, *, clock: Clock) -> None:
        """Waits for the given seconds, or until this process is requested to stop."""
        wait_for = self.client.wait_for
        wait_for(lambda state: state.stop_requested, timeout_seconds=seconds, give_up=self._stop.is_set)

    def _is_first_refusal(self, step: int) -> bool:
        """Returns whether this is the first refusal at a step: one may be caused by other processes, two are not."""
        at = (step, self.client.state.generation)
        is_first, self._refused_at = at != self._refused_at, at
        return is_first

    def is_replaced(self) -> bool:
        """Returns whether another process has taken the index of this one."""
        try:
            self.client.require_connected()
        except AbortedError:
            return True
        except OpError:
            return False
        return False

    # Ending

    def stop_job(self) -> None:
        """Requests the stop of the job; if the coordinator is unreachable, only of this process."""
        self._stop.set()
        threading.Thread(target=self._request_stop, name="job/stop", daemon=True).start()  # a signal must not wait

    def end_job(self) -> None:
        """Ends the job after the chief's last save: workers may exit, shortly before the servers do."""
        if not self.is_chief:
            return
        try:
            self.client.end_job()
            self.client.wait_for(_is_alone, timeout_seconds=_GOODBYE_SECONDS)
        except OpError as error:
            _log.warning("the workers could not be notified that the job has ended: %s", error)

    def stop_here(self) -> None:
        """Ends this worker after its step."""
        self._stop.set()

    @property
    def stop_requested(self) -> bool:
        """Returns whether this process was requested to stop."""
        # Latched: the coordinator clears the request once the last worker has followed it.
        if not self._stop.is_set() and self.client.state.stop_requested:
            self._stop.set()
        return self._stop.is_set()

    def _request_stop(self) -> None:
        try:
            self.client.request_stop()
        except OpError as error:
            _log.warning("the request to stop the job failed: %s", error)

    # Resuming a worker

    def restore(self, state: TrainState, saver: Saver | None, *, clock: Clock) -> None:
        """Restores what servers have lost, if this is the chief; otherwise waits until the chief has done so."""
        if self.is_chief:
            state.extra[JOB] = self.client.saved
        session = state.session if isinstance(state, SessionState) else None
        restore_in_job(self, self.config, saver, state, give_up=lambda: session is not None and session.stop_requested)

    def resume(
        self, worker: int, last: BatchStamp | None, known: Sequence[OwnerProgress], *, next_batch: int
    ) -> Resumed:
        """Returns the batch after which a worker that has joined resumes, and reports lost batches."""
        state = self.client.state
        is_same = self._generation == state.generation and self._acknowledged is not None
        acknowledged = self._acknowledged if is_same and self._acknowledged is not None else None
        if acknowledged is not None and acknowledged.worker != worker:
            acknowledged = None
        found = resume(known, acknowledged)
        if not is_same:
            self._lost.clear()
        has_rows = any(not each.is_dense for each in known)
        for is_dense, lost in ((False, found.lost), (True, found.lost_dense)):
            for server, updates in lost.items():
                batches = range(found.next_seq - updates, found.next_seq)
                is_counted = not (is_dense and has_rows)
                if is_counted:
                    self.client.report_lost(worker, server, batches)  # if it fails, the next attempt reports them again
                new = self._lost.add((worker, server, is_dense), batches)
                if new:
                    self._tell_lost(worker, server, new, is_counted=is_counted)
        self._generation = state.generation
        self._submitted.clear()
        self._acknowledged = acknowledged
        self._others = max(0, state.steps - found.next_seq)
        return found

    def _tell_lost(self, worker: int, server: int, updates: int, *, is_counted: bool) -> None:
        """Reports lost updates of rows; of a model without rows, those of its weights."""
        _log.warning(
            "worker %d: server %d recovered without %d of its updates%s, which are lost; the other servers have them",
            worker,
            server,
            updates,
            "" if is_counted else " of dense weights",
        )
        if is_counted:
            self._metrics.emit_counter("lost_updates", updates, {"worker": worker, "server": server})

    # Steps

    def count_step(self, step: int, stamp: BatchStamp | None, *, in_flight: int) -> int:
        """Returns the global step of the job: the steps of all workers that the servers have reported."""
        if stamp is None:
            return step + 1
        self._submitted.append(stamp)
        if in_flight < len(self._submitted):
            self._acknowledged = self._submitted[-1 - in_flight]
        heard = next((steps for counter in self._counters if (steps := counter()) >= 0), -1)
        if heard >= 0:
            self._others = heard
        return max(step, self.client.state.step_offset + self._others + stamp.seq + 1)

    def settled(self) -> None:
        """Records that all submitted updates are acknowledged."""
        if self._submitted:
            self._acknowledged = self._submitted[-1]

    # Losing and finding servers

    def reconnect(self) -> None:
        """Returns when all servers answer, wherever they are now.

        Raises:
            DeadlineExceededError: they do not within the time for a new session.
            CancelledError: this process is to end, and `ServerWatch` has given the servers up.
        """
        self._servers_back.wait(self.settings.session_creation_timeout_seconds)

    def wait_until_restored(self, owners: Sequence[Callable[[], Sequence[int]]], give_up: Callable[[], bool]) -> None:
        """Waits until the chief has restored the model and every server has its part.

        Raises:
            DeadlineExceededError: it took longer than the timeout for a new session.
        """
        end = self.clock.monotonic() + self.settings.session_creation_timeout_seconds
        self.client.wait_for(
            lambda state: state.restored,
            timeout_seconds=self.settings.session_creation_timeout_seconds,
            give_up=give_up,
        )
        while not give_up():
            lost = sorted({server for owner in owners for server in owner()})
            if self.client.state.restored and not lost:
                return
            if self.clock.monotonic() >= end:
                raise DeadlineExceededError(
                    f"worker {self.client.index}: the model was not restored on servers {lost or 'of the job'} within"
                    f" {self.settings.session_creation_timeout_seconds:g} s; is the chief up?"
                )
            self.clock.sleep(_LOOK_SECONDS)


class JobHook(Hook):
    """Reports this worker's progress to the job, and stops it with the job, or when its index was reassigned."""

    def __init__(self, client: JobClient) -> None:
        self._client = client

    def before_run(self, context: StepContext) -> None:
        """Checks the last received state; makes no call."""
        self._client.require_connected()

    def after_run(self, context: StepContext) -> None:
        """Records the progress to report with the next heartbeat."""
        self._client.set_progress(context.global_step)


def _steps_of_others(state: TrainState) -> list[Callable[[], int]]:
    """Returns sources of the other workers' steps, one for each part on servers; -1 until they have a value."""
    rows = [store for store in state.stores.values() if isinstance(store, RemoteRows)]
    counters: list[Callable[[], int]] = [lambda store=store: store.steps_of_others for store in rows]  # type: ignore[misc]
    if (dense := state.dense) is not None:
        counters.append(lambda: dense.steps_of_others)
    return counters


def _is_alone(state: JobState) -> bool:
    return not any(each.role == "worker" and each.index and each.alive for each in state.members)
