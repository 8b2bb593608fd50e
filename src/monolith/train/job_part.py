"""The part of one worker in a job: its servers, its view of the other workers, and how it resumes after a loss."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from monolith.errors import AbortedError, DeadlineExceededError, OpError
from monolith.job import LostUpdates
from monolith.observe import MetricClient
from monolith.stop_request import StopRequest
from monolith.train.saving.resuming import OwnerProgress, resume
from monolith.train.saving.server_rows import server_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.checkpoint import TrainState
    from monolith.clock import Clock
    from monolith.hook import Hook
    from monolith.job import JobClient, JobState
    from monolith.ps.client import PsCluster
    from monolith.tables import BatchStamp, Store, TableConfig
    from monolith.train.config.job_config import JobConfig
    from monolith.train.roles.server_watch import ServerReconnector
    from monolith.train.saving.resuming import Resumed

__all__ = ["JobPart", "steps_of_others"]

_log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 10.0
_LOOK_SECONDS = 0.2
"""Interval in seconds at which a worker polls servers that are being restored."""


class JobPart:
    """What a session and its trainer need of a job. Only the training thread may use it.

    Args:
        cluster: The parameter servers.
        client: Connection of this process to the coordinator.
        settings: Timeouts of the job.
        servers_back: Looks up lost servers.
        clock: Measures waits.
        stop: Set when this process must stop; None: its own event.
    """

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
        self.cluster = cluster
        self.client = client
        self.settings = settings
        self.clock = clock
        self.health_hook: Hook | None = None
        """Looks after the memory of the servers; of the chief."""
        self._servers_back = servers_back
        self._metrics = MetricClient()
        self._handed_over: deque[BatchStamp] = deque(maxlen=64)
        self._acknowledged: BatchStamp | None = None
        self._generation = 0
        """Generation of the restore that the acknowledged batches belong to."""
        self._lost = LostUpdates[tuple[int, int, bool]]()
        self._others = 0
        self._stop = StopRequest() if stop is None else stop
        self._counters: list[Callable[[], int]] = []

    @property
    def is_chief(self) -> bool:
        """Returns whether this process is the chief, which restores and saves."""
        return self.client.index == 0

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

    def ask_to_stop(self) -> None:
        """Requests the stop of the job; if the coordinator is unreachable, only of this process."""
        self._stop.set()
        threading.Thread(target=self._ask_to_stop, name="job/stop", daemon=True).start()  # a signal must not wait

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
    def wants_to_stop(self) -> bool:
        """Returns whether this process was requested to stop."""
        # Latched: the coordinator clears the request once the last worker has followed it.
        if not self._stop.is_set() and self.client.state.stop_requested:
            self._stop.set()
        return self._stop.is_set()

    def pause(self, seconds: float) -> None:
        """Waits for the given seconds, or until this process is requested to stop."""
        wait_for = self.client.wait_for
        wait_for(lambda state: state.stop_requested, timeout_seconds=seconds, give_up=self._stop.is_set)

    def _ask_to_stop(self) -> None:
        try:
            self.client.request_stop()
        except OpError as error:
            _log.warning("the request to stop the job failed: %s", error)

    # What a model is built with

    def new_store_factory(self) -> Callable[[Mapping[str, TableConfig]], Store]:
        """Makes the stores of one model on the servers."""
        return server_stores(self.cluster)

    # Resuming a worker

    def resume(self, worker: int, known: Sequence[OwnerProgress]) -> Resumed:
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
        self._handed_over.clear()
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

    def count_by(self, counters: Sequence[Callable[[], int]]) -> None:
        """Sets the sources of the other workers' steps; each returns -1 until it has a value."""
        self._counters = list(counters)

    def count(self, stamp: BatchStamp, *, under_way: int) -> int:
        """Counts a step; returns the global step of the job.

        Args:
            stamp: Stamp of its batch.
            under_way: Number of steps, including this one, whose update a server has not acknowledged.
        """
        self._handed_over.append(stamp)
        if under_way < len(self._handed_over):
            self._acknowledged = self._handed_over[-1 - under_way]
        heard = next((steps for counter in self._counters if (steps := counter()) >= 0), -1)
        if heard >= 0:
            self._others = heard
        return self.client.state.step_offset + self._others + stamp.seq + 1

    def settled(self) -> None:
        """Records that all submitted updates are acknowledged."""
        if self._handed_over:
            self._acknowledged = self._handed_over[-1]

    # Losing and finding servers

    def find_servers(self) -> None:
        """Returns when all servers answer, wherever they are now.

        Raises:
            DeadlineExceededError: they do not within the time for a new session.
            CancelledError: this process is to end, and `ServerWatch` has given the servers up.
        """
        self._servers_back.wait(self.settings.session_creation_timeout_seconds)

    def wait_until_restored(self, owners: Sequence[Callable[[], Sequence[int]]], give_up: Callable[[], bool]) -> None:
        """Waits until the chief has restored the model and every server has its part.

        Args:
            owners: Functions that return the servers without restored state.
            give_up: Ends the wait when it returns True.

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


def steps_of_others(state: TrainState) -> list[Callable[[], int]]:
    """Returns sources of the other workers' steps, one for each part on servers; -1 until they have a value."""
    keepers: list[Any] = [*state.stores.values(), *([] if state.dense is None else [state.dense])]
    keepers = [each for each in keepers if hasattr(each, "steps_of_others")]
    return [lambda keeper=keeper: int(keeper.steps_of_others) for keeper in keepers]  # type: ignore[misc]


def _is_alone(state: JobState) -> bool:
    return not any(each.role == "worker" and each.index and each.alive for each in state.members)
