"""A job of many processes, as one of them sees it: who is there, how far it is, where all wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from monolith.cluster.job_state import NO_WORKER
from monolith.errors import InvalidArgumentError, UnavailableError
from monolith.ps._job_line import JobLine
from monolith.ps.job_barrier import JobBarrier
from monolith.ps.job_file_queue import JobFileQueue
from monolith.ps.job_flags import JobFlags
from monolith.ps.protos import coordinator_pb2 as messages
from monolith.ps.saved_job import SavedJob

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from monolith.cluster.job_state import JobState
    from monolith.data.sources.file_queue import FileQueue
    from monolith.ps.cluster import PsCluster

__all__ = ["JobClient"]


class JobClient:
    """This process as a member of a job, from when it is made until `close`. A context manager; any thread may call it.

    The coordinator is on the first server, the home server. While that is away `is_connected` is False, calls wait as
    the cluster's `timeout_seconds` say, and then raise `UnavailableError` or `DeadlineExceededError`; when it is back,
    at any address that `PsCluster.move` is told, the process announces itself again.

    >>> from monolith.ps import JobClient, PsCluster, PsServer
    >>> with PsServer(0, num_ps=1) as server, PsCluster([server.address]) as cluster:
    ...     with JobClient(cluster, role="worker", index=0, num_workers=2) as job:
    ...         job.flags.set(0, True)
    ...         [(each.role, each.index) for each in job.state.members], job.state.restored
    ([('worker', 0)], True)

    Args:
        cluster: The servers of the job.
        role: ``worker`` or ``ps``.
        index: Number of this process among those of its role; worker 0 is the chief.
        num_workers: Workers of the job, the chief among them; the same for all members.
        address: Where this process is, for messages.
        lease_seconds: How long this process may not be heard before it counts as lost, as a stopped one is not. One
            whose connection has ended is lost after a second.

    Raises:
        AlreadyExistsError: another process that is alive has this place; says where, and when it was heard last.
        FailedPreconditionError: the others were started for another number of workers.
        UnavailableError, DeadlineExceededError: the home server does not answer.
    """

    def __init__(
        self,
        cluster: PsCluster,
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
        self._line = JobLine(
            cluster,
            messages.JoinRequest(
                seat=messages.Seat(role=role, index=index),
                num_workers=num_workers,
                address=address,
                lease_seconds=lease_seconds,
            ),
        )
        self.barrier = JobBarrier(self._line, index, num_workers)
        """Where workers wait while the chief saves."""
        self.flags = JobFlags(self._line, num_workers)
        """Flag 0: the model is restored; flag i: worker i trains, until it says otherwise or is lost."""

        self.saved = SavedJob(self._line)
        """What a checkpoint keeps of the job: ``TrainState(extra={"job": job.saved})``."""

    def file_queue(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str = "files",
    ) -> FileQueue:
        """Files that all workers of the job share: each takes the next one when it is done with one.

        Args:
            paths: As for `monolith.data.LocalFileQueue`; the same for all workers.
            seed: As for `monolith.data.LocalFileQueue`.
            storage_options: For the file system of URLs.
            name: Tells queues of one job apart.
        """
        return JobFileQueue(self._line, name, paths, seed=seed, storage_options=storage_options)

    @property
    def state(self) -> JobState:
        """The job as it was heard last."""
        return self._line.state

    @property
    def num_shares(self) -> int:
        """Shares that the input has: the number of workers that the run began with."""
        return self._line.state.num_shares or self.num_workers

    @property
    def is_connected(self) -> bool:
        """Whether the home server is heard, and this process has its place."""
        return self._line.is_connected

    def require_connected(self) -> None:
        """Refuses to go on without a coordinator.

        Raises:
            UnavailableError: the home server is away.
            AbortedError: another process took the place of this one.
        """
        self._line.require()
        if not self._line.is_connected:
            raise UnavailableError(
                f"job: {self.role} {self.index} does not hear the coordinator on the home server; it goes on when that"
                " server is back"
            )

    def wait_for(
        self,
        predicate: Callable[[JobState], bool],
        *,
        timeout_seconds: float | None,
        give_up: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until the state is so, waking with every change that is pushed; no call is made.

        Args:
            predicate: Of the state.
            timeout_seconds: The longest; None: as long as it takes.
            give_up: Asked five times a second; True ends the wait.

        Returns:
            False: the time is over, or it was given up.

        Raises:
            AbortedError: another process took the place of this one.
        """
        return self._line.wait_for(predicate, timeout_seconds=timeout_seconds, give_up=give_up)

    def set_progress(self, global_step: int) -> None:
        """How far this process is, for others to see with the next renewal of its lease; costs no call."""
        self._line.progress = global_step

    def set_step_offset(self, offset: int) -> None:
        """Steps that no clock of the servers counts, such as those of a run that was trained without them."""
        self._line.ask("Change", messages.ChangeRequest(step_offset=offset))

    def set_restored(self, global_step: int | None) -> None:
        """All servers were put back to this step: workers may train, in a new generation.

        Args:
            global_step: None: the one that the clocks of the servers, and what was loaded of the job, give.
        """
        self._line.ask("Change", messages.ChangeRequest(restored_step=-1 if global_step is None else global_step))

    def leave(self) -> None:
        """This worker pushes nothing any more, though its input has not ended; `close` then ends it."""
        self._line.ask("Change", messages.ChangeRequest(left=True))

    def end_job(self) -> None:
        """The chief has saved for the last time: nothing is trained again, and all members may end."""
        self._line.ask("Change", messages.ChangeRequest(ended=True))

    def finish(self) -> None:
        """The input of this worker has ended, and all that it pushed is applied: nobody goes on under its number."""
        self._line.ask("Change", messages.ChangeRequest(finish=True))

    def adopt_worker(self) -> int | None:
        """A worker number to go on with, behind what its lost process had applied; None: there is none now.

        There is one where a worker that took files of the shared queue was not heard for its whole lease, or where the
        job began again with fewer workers than the input has shares. ``state.lost`` are those that may come back until
        then.
        """
        answer = self._line.ask("Adopt", messages.SeatRequest())
        return None if answer.worker == NO_WORKER else int(answer.worker)

    def release_worker(self, number: int, *, finished: bool) -> None:
        """Gives an adopted number up: its input has ended, and all is applied; or another worker is to go on.

        Raises:
            FailedPreconditionError: it was not adopted.
        """
        release = messages.Release(worker=number, finished=finished)
        self._line.ask("Change", messages.ChangeRequest(release=release))

    def report_lost(self, worker: int, server: int, batches: range) -> None:
        """A server that came back lacks the updates of these batches of a worker, for good: see ``state.lost_updates``.

        A batch counts once, however often it is told.
        """
        lost = messages.LostUpdates(worker=worker, server=server, updates=len(batches), first=batches.start)
        self._line.ask("Change", messages.ChangeRequest(lost_updates=lost))

    def request_stop(self) -> None:
        """Asks all members to end; they see it in ``state.stop_requested``."""
        self._line.ask("Change", messages.ChangeRequest(stop=True))

    def reset(self) -> None:
        """All begin anew on these servers: forgets what was restored, finished, lost, and which files were taken."""
        self._line.ask("Change", messages.ChangeRequest(reset=True))

    def close(self) -> None:
        """Leaves the job: the place is free at once. Calling it again does nothing."""
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
