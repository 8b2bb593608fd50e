"""Membership of one process in a job: members, progress, flags and barriers, shared through the coordinator."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monolith.closing import Closing
from monolith.cluster import BarrierAlreadyPlacedError
from monolith.data.file_queue import Assignments, HostedFileQueue, LookUp
from monolith.data.sources import FilePart, FilePatterns
from monolith.errors import AlreadyExistsError, DeadlineExceededError, InvalidArgumentError, OpError, UnavailableError
from monolith.job.coordinator_connection import CoordinatorConnection
from monolith.job.saved_job import SavedJob
from monolith.job.state import NO_WORKER
from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from monolith.data.file_queue import FileQueue, WorkerProgress
    from monolith.job.coordinator_connection import ServerChannels
    from monolith.job.state import JobState


class JobBarrier:
    """A `monolith.cluster.Barrier` for processes. Thread-safe.

    The barrier is removed with the process that placed it. It does not wait for workers that do not train, were lost or
    have ended.

    Args:
        line: Connection to the coordinator.
        index: Index of this worker.
        capacity: Number of workers, including the chief.
    """

    def __init__(self, line: CoordinatorConnection, index: int, capacity: int) -> None:
        self._line = line
        self._index = index
        self._capacity = capacity
        self._callbacks: list[Callable[[str], None]] = []

    @property
    def capacity(self) -> int:
        """Number of workers, including the chief."""
        return self._capacity

    def add_callback(self, callback: Callable[[str], None]) -> None:
        """Adds a callback, called with the action when this process has placed or reached the barrier."""
        self._callbacks.append(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Registers a callback for when any process has placed or removed the barrier."""
        self._line.on_barrier(callback)

    def place_barrier(self, action: str = "") -> None:
        """Places the barrier and runs the callbacks.

        Raises:
            BarrierAlreadyPlacedError: the barrier is placed already.
        """
        try:
            self._line.send_change(messages.ChangeRequest(place_barrier=action), placed_action=action)
        except AlreadyExistsError as error:
            raise BarrierAlreadyPlacedError(error.message) from error
        except (DeadlineExceededError, UnavailableError):
            with suppress(OpError):  # the barrier may be placed, and a caller that gets an error would not remove it
                self.remove_barrier()
            raise
        self.run_callbacks(action)

    def remove_barrier(self) -> None:
        """Removes the barrier, if it is placed."""
        self._line.send_change(messages.ChangeRequest(remove_barrier=True), placed_action=None)

    def is_barrier_placed(self) -> bool:
        """Returns whether the barrier is placed, by the last received state; makes no call."""
        return self._line.state.barrier_placed

    def run_callbacks(self, action: str) -> None:
        """Calls every callback with the action."""
        for callback in self._callbacks:
            callback(action)

    def enter(self, index: int) -> str:
        """Marks this worker as waiting, and returns the action of the barrier."""
        self._require_own(index)
        self._line.send_change(messages.ChangeRequest(waits=True), waits=True)
        return self._line.state.barrier_action

    def leave(self, index: int) -> None:
        """Marks this worker as running; an unreachable home server receives it after it recovers."""
        self._require_own(index)
        with suppress(UnavailableError, DeadlineExceededError):
            self._line.send_change(messages.ChangeRequest(waits=False), waits=False)

    def get_blocked_indices(self) -> list[int]:
        """Returns the workers that wait; includes 0 while the barrier is placed."""
        state = self._line.state
        return [0] * state.barrier_placed + sorted(state.blocked)

    def get_unblocked_indices(self) -> list[int]:
        """Returns the workers that do not wait; includes 0 while the barrier is not placed."""
        blocked = self.get_blocked_indices()
        return [index for index in range(self._capacity) if index not in blocked]

    def wait_removed(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Waits until the barrier is removed; False: the time is over, or `give_up` was true."""
        return self._line.wait_for(
            lambda state: not state.barrier_placed, timeout_seconds=timeout_seconds, give_up=give_up
        )

    def wait_blocked(self, timeout_seconds: float) -> list[int]:
        """Waits until every training worker waits; returns those that do not after the timeout."""
        self._line.wait_for(lambda state: not state.awaited, timeout_seconds=timeout_seconds)
        return sorted(self._line.state.awaited)

    def _require_own(self, index: int) -> None:
        if index != self._index:
            raise InvalidArgumentError(f"barrier: worker {self._index} speaks for itself, got index {index}")


class JobClient(Closing):
    """This process as a member of a job, from construction until `close`. A context manager. Thread-safe.

    The coordinator runs on server 0, the home server. While that server is unreachable, `is_connected` is False, and
    calls wait up to the cluster's `timeout_seconds` and then raise `UnavailableError` or `DeadlineExceededError`. When
    the server recovers, at any address passed to `PsCluster.move`, the process rejoins by itself.

    >>> from monolith.ps import JobClient, PsCluster, PsServer
    >>> with PsServer(0, num_ps=1) as server, PsCluster([server.address]) as cluster:
    ...     with JobClient(cluster, role="worker", index=0, num_workers=2) as job:
    ...         job.flags.set(0, True)
    ...         [(each.role, each.index) for each in job.state.members], job.state.restored
    ([('worker', 0)], True)

    Args:
        cluster: The servers of the job.
        role: ``worker`` or ``ps``.
        index: Index of this process within its role; worker 0 is the chief.
        num_workers: Number of workers of the job, including the chief; the same for all members.
        address: Address of this process, for messages.
        lease_seconds: Time from the last heartbeat until this process counts as lost, as for a suspended process. A
            process whose connection has ended is lost after one second.

    Raises:
        AlreadyExistsError: a live process has this index; names its address and its last heartbeat.
        FailedPreconditionError: the other members were started for another number of workers.
        UnavailableError, DeadlineExceededError: the home server does not answer.
    """

    def __init__(
        self,
        cluster: ServerChannels,
        *,
        role: str,
        index: int,
        num_workers: int,
        address: str = "",
        lease_seconds: float = 10.0,
    ) -> None:
        if not 0 < lease_seconds <= 3600:
            raise InvalidArgumentError(f"job: lease_seconds must be > 0 and <= 3600, got {lease_seconds}")
        self.role = role
        self.index = index
        self.num_workers = num_workers
        self._line = CoordinatorConnection(
            cluster,
            messages.JoinRequest(
                seat=messages.Seat(role=role, index=index),
                num_workers=num_workers,
                address=address,
                lease_seconds=lease_seconds,
            ),
        )
        self.barrier = JobBarrier(self._line, index, num_workers)
        """Barrier at which workers wait while the chief saves."""
        self.flags = JobFlags(self._line, num_workers)
        """Flag 0: the model is restored. Flag i: worker i trains, until it clears the flag or is lost."""

        self.saved = SavedJob(self._line)
        """State of the job in a checkpoint: ``TrainState(extra={"job": job.saved})``."""

    def file_queue(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str = "files",
    ) -> FileQueue:
        """Opens a queue of files that all workers share: a worker that finishes a file takes the next one.

        Args:
            paths: As for `monolith.data.LocalFileQueue`; the same for all workers.
            seed: As for `monolith.data.LocalFileQueue`.
            storage_options: Options of the file system of URLs.
            name: Name of the queue within the job.
        """
        patterns = FilePatterns(paths, seed=seed, storage_options=storage_options)
        assignments = RemoteAssignments(self._line, name, patterns)
        return HostedFileQueue(patterns, lambda action: action(assignments))

    @property
    def state(self) -> JobState:
        """The last received state of the job."""
        return self._line.state

    @property
    def num_shares(self) -> int:
        """Number of shares of the input: the number of workers at the start of the run."""
        return self._line.state.num_shares or self.num_workers

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator is reachable and this process holds its lease."""
        return self._line.is_connected

    def require_connected(self) -> None:
        """Raises if the coordinator is unreachable.

        Raises:
            UnavailableError: the home server is unreachable.
            AbortedError: another process has the index of this one.
        """
        self._line.require()
        if not self._line.is_connected:
            raise UnavailableError(
                f"job: {self.role} {self.index} is not connected to the coordinator on the home server; it resumes when"
                " that server is available again"
            )

    def wait_for(
        self,
        predicate: Callable[[JobState], bool],
        *,
        timeout_seconds: float | None,
        give_up: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until the predicate holds. Wakes with every pushed change of the state; makes no call.

        Args:
            predicate: Function of the state.
            timeout_seconds: Time limit; None: no limit.
            give_up: Polled five times a second; True cancels the wait.

        Returns:
            False if the time is over or the wait was cancelled.

        Raises:
            AbortedError: another process has the index of this one.
        """
        return self._line.wait_for(predicate, timeout_seconds=timeout_seconds, give_up=give_up)

    def set_progress(self, global_step: int) -> None:
        """Sets the progress of this process; other members see it after the next lease renewal. Makes no call."""
        self._line.progress = global_step

    def set_step_offset(self, offset: int) -> None:
        """Sets the steps that no server counts, such as those of an earlier run without parameter servers."""
        self._line.ask("Change", messages.ChangeRequest(step_offset=offset))

    def set_restored(self, global_step: int | None) -> None:
        """Reports that all servers are restored to this step: workers may train, in a new generation.

        Args:
            global_step: None: the step given by the clocks of the servers and the loaded state of the job.
        """
        self._line.ask("Change", messages.ChangeRequest(restored_step=-1 if global_step is None else global_step))

    def leave(self) -> None:
        """Reports that this worker pushes nothing more, though its input has not ended; call `close` afterwards."""
        self._line.ask("Change", messages.ChangeRequest(left=True))

    def end_job(self) -> None:
        """Ends the job after the last checkpoint of the chief: training is over, and all members may end."""
        self._line.ask("Change", messages.ChangeRequest(ended=True))

    def finish(self) -> None:
        """Reports that the input of this worker has ended and all its pushes are applied: its index is not resumed."""
        self._line.ask("Change", messages.ChangeRequest(finish=True))

    def adopt_worker(self) -> int | None:
        """Returns the index of a lost worker to resume after its last applied batch; None: there is none now.

        An index is available if a worker that took files of the shared queue sent no heartbeat for its lease, or if the
        job restarted with fewer workers than the input has shares. Workers in ``state.lost`` may still reconnect until
        their lease expires.
        """
        answer = self._line.ask("Adopt", messages.SeatRequest())
        return None if answer.worker == NO_WORKER else int(answer.worker)

    def release_worker(self, number: int, *, finished: bool) -> None:
        """Releases an adopted index: its input has ended and all is applied, or another worker is to resume it.

        Raises:
            FailedPreconditionError: the index was not adopted.
        """
        release = messages.Release(worker=number, finished=finished)
        self._line.ask("Change", messages.ChangeRequest(release=release))

    def report_lost(self, worker: int, server: int, batches: range) -> None:
        """Reports updates of a worker that a recovered server lacks permanently: see ``state.lost_updates``.

        Each batch counts once, however often it is reported.
        """
        lost = messages.LostUpdates(worker=worker, server=server, updates=len(batches), first=batches.start)
        self._line.ask("Change", messages.ChangeRequest(lost_updates=lost))

    def request_stop(self) -> None:
        """Requests that all members end; they see it in ``state.stop_requested``."""
        self._line.ask("Change", messages.ChangeRequest(stop=True))

    def reset(self) -> None:
        """Resets the job on these servers: discards what was restored, finished and lost, and the file assignments."""
        self._line.ask("Change", messages.ChangeRequest(reset=True))

    def close(self) -> None:
        """Leaves the job and frees the index immediately. Idempotent."""
        self._line.close()


class JobFlags:
    """A flag per worker; a `monolith.hooks.SharedFlags`. Thread-safe.

    The flag of a worker is down while its lease is expired, and up again after it reconnects. Reading makes no call.

    Args:
        line: Connection to the coordinator.
        size: Number of workers.
    """

    def __init__(self, line: CoordinatorConnection, size: int) -> None:
        self._line = line
        self._size = size

    def __len__(self) -> int:
        return self._size

    def set(self, index: int, value: bool) -> None:
        """Sets one flag; a worker sets only its own."""
        request = messages.ChangeRequest(flag=messages.Flag(index=index, value=value))
        if index > 0 and index == self._line.seat.index:
            self._line.send_change(request, trains=value)
        else:
            self._line.ask("Change", request)

    def read(self) -> list[bool]:
        """Returns all flags of one consistent state."""
        return self._flags(self._line.state)

    def wait(
        self,
        predicate: Callable[[Sequence[bool]], bool],
        *,
        timeout_seconds: float | None,
        give_up: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until the predicate holds; False: the time is over, or `give_up` was true."""
        return self._line.wait_for(
            lambda state: predicate(self._flags(state)), timeout_seconds=timeout_seconds, give_up=give_up
        )

    def _flags(self, state: JobState) -> list[bool]:
        training = state.training
        return [state.restored, *(index in training for index in range(1, self._size))]


class RemoteAssignments(Assignments):
    """The assignments of a file queue at the coordinator. Thread-safe.

    Args:
        line: Connection to the coordinator.
        name: Name of the queue; a job may have several.
        patterns: Patterns of its files.
    """

    def __init__(self, line: CoordinatorConnection, name: str, patterns: FilePatterns) -> None:
        self._line = line
        self._name = name
        self._facts = patterns.facts

    def take(self, worker: int, turn: int, epoch: int) -> FilePart | LookUp | None:
        """Returns the file of a worker's turn; None: there are no more."""
        answer = self._line.ask("TakeFile", self._request(worker, turn, epoch))
        if answer.HasField("path"):
            return FilePart(answer.path, json.loads(answer.place) if answer.place else None)
        if answer.HasField("look_up"):
            return LookUp(answer.look_up)
        return LookUp(None) if answer.nothing_found else None

    def require_taken(self, worker: int, turns: int, epoch: int) -> None:
        """Raises if a worker resumes after more files than the queue has assigned to it."""
        request = self._request(worker, turns, epoch)
        request.only_look = True
        self._line.ask("TakeFile", request)

    def found(self, look_up: int, files: Sequence[str]) -> None:
        """Reports the files that this worker has listed."""
        self._line.ask("FoundFiles", messages.FoundFilesRequest(queue=self._name, look_up=look_up, files=files))

    def give_back(self, worker: int, progress: WorkerProgress | None) -> int:
        """Returns the unread files of a lost worker to the queue; its index is not used again."""
        request = messages.GiveBackRequest(queue=self._name, worker=worker)
        if progress is not None:
            content = [progress.epoch, progress.turns, sorted(progress.places.items())]
            request.progress = json.dumps(content).encode()
        return int(self._line.ask("GiveBack", request).files)

    def _request(self, worker: int, turn: int, epoch: int) -> messages.TakeFileRequest:
        return messages.TakeFileRequest(queue=self._name, worker=worker, turn=turn, epoch=epoch, **self._facts)
