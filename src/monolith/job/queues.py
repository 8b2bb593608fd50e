"""File queues shared by the workers of a job, without I/O: workers list files, and request their assignments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.data.file_queue import FileAssignments, FilePart
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.data.file_queue import Event, WorkerProgress
    from monolith.job.queue_logs import QueueLogs


@dataclass(frozen=True, slots=True)
class LookUp:
    """A worker is to list the files of a pattern first, and report them."""

    number: int


class JobQueue:
    """One queue. Not thread-safe.

    Args:
        digest: Digest of its patterns and seed.
        num_look_ups: Number of listings, one pattern after another.
        seed: As for `FileAssignments`.
    """

    def __init__(self, *, digest: str, num_look_ups: int, seed: int | None) -> None:
        self.digest = digest
        self.num_look_ups = num_look_ups
        self.seed = seed
        self.events: list[Event] = []
        self.keep: Callable[[Event], None] = lambda _: None
        """Persists an event for a restart, before the event takes effect."""
        self._state = FileAssignments(num_look_ups, seed=seed)

    @property
    def workers(self) -> list[int]:
        """Workers that took files and did not return them."""
        return self._state.workers

    @property
    def has_files(self) -> bool:
        """Whether any file was found."""
        return bool(self._state.files)

    def take(self, worker: int, turn: int, epoch: int) -> FilePart | LookUp | None:
        """Returns the file of a worker's `turn`; None: there are no more.

        Raises:
            FailedPreconditionError: as `FileQueue.take`.
        """
        while (piece := self._state.taken(worker, turn, epoch)) is None:
            event = self._state.take(worker, epoch)
            if event is None:
                return self._look_up()
            self._happen(event)
        return FilePart(self._state.files[piece.number], piece.place)

    def require_taken(self, worker: int, turns: int, epoch: int) -> None:
        """Checks assignments; see `FileQueue.require_taken`."""
        self._state.taken(worker, turns, epoch)

    def found(self, look_up: int, files: Sequence[str]) -> None:
        """Adds the files that a worker has listed; ignores all but the first report of a listing."""
        if self._state.next_look_up == look_up:
            self._happen(self._state.found(files))

    def give_back(self, worker: int, progress: WorkerProgress | None) -> int:
        """Returns the files of a worker to the queue; see `FileQueue.give_back`."""
        event = self._state.give_back(worker, progress)
        if event is None:
            return 0
        self._happen(event)
        return len(event["give_back"][1])

    def replay(self, events: Sequence[Event]) -> None:
        """Replays earlier events; they are not persisted again."""
        for event in events:
            self._state.apply(event)
            self.events.append(event)

    def _look_up(self) -> LookUp | None:
        number = self._state.next_look_up
        return None if number is None else LookUp(number)

    def _happen(self, event: Event) -> None:
        self.keep(event)
        self._state.apply(event)
        self.events.append(event)


class JobQueues:
    """All queues of a job, by name. Not thread-safe.

    Args:
        logs: Event logs, which are read first and make a restart possible; None: no logs.
    """

    def __init__(self, logs: QueueLogs | None = None) -> None:
        self._logs = logs
        self._queues: dict[str, JobQueue] = {}
        if logs is not None:
            self.load_state_dict(logs.read())

    @property
    def workers(self) -> set[int]:
        """Workers that took files of any queue and did not return them."""
        return {worker for queue in self._queues.values() for worker in queue.workers}

    def open(self, name: str, *, digest: str, num_look_ups: int, seed: int | None) -> JobQueue:
        """Returns the queue of a name; creates it if missing.

        Raises:
            InvalidArgumentError: the queue has other patterns or another seed.
        """
        queue = self._queues.get(name)
        if queue is None:
            queue = self._add(name, {"digest": digest, "num_look_ups": num_look_ups, "seed": seed}, ())
        if queue.digest != digest:
            raise InvalidArgumentError(
                f"file queue {name!r} of this job is of other patterns or another seed: all workers give the same"
            )
        return queue

    def find(self, name: str) -> JobQueue:
        """Returns the queue of a name.

        Raises:
            InvalidArgumentError: there is none.
        """
        if name not in self._queues:
            raise InvalidArgumentError(f"file queue {name!r}: no worker has taken a file of it yet")
        return self._queues[name]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint; capture it together with the positions of the workers, or later."""
        return {
            name: {
                "digest": queue.digest,
                "num_look_ups": queue.num_look_ups,
                "seed": queue.seed,
                "events": list(queue.events),
            }
            for name, queue in sorted(self._queues.items())
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state; files taken after it are assigned again."""
        gone = self._queues.keys() - state.keys()
        self._queues.clear()
        for name, saved in state.items():
            self._add(name, {key: saved[key] for key in ("digest", "num_look_ups", "seed")}, saved["events"])
        if self._logs is not None:
            for name in gone:
                self._logs.drop(name)

    def close(self) -> None:
        """Closes the logs."""
        if self._logs is not None:
            self._logs.close()

    def _add(self, name: str, facts: dict[str, Any], events: Sequence[Event]) -> JobQueue:
        queue = JobQueue(**facts)
        queue.replay(events)
        if self._logs is not None:
            queue.keep = self._logs.begin(name, facts, events).append
        self._queues[name] = queue
        return queue
