"""The queues of files that the workers of a job share, without I/O: workers look files up, and ask whose each is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.data.sources.file_assignments import FileAssignments
from monolith.data.sources.file_feed import FilePart
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.data.sources.file_assignments import Event, Progress
    from monolith.ps.queue_logs import QueueLogs

__all__ = ["JobQueue", "JobQueues", "LookUp"]


@dataclass(frozen=True, slots=True)
class LookUp:
    """What a worker is to do first: look up the files of a pattern, and tell them."""

    number: int


class JobQueue:
    """One queue. Used by one thread at a time.

    Args:
        digest: Of its patterns and seed.
        num_look_ups: Times that files are looked up, by one pattern after another.
        seed: As for `FileAssignments`.
    """

    def __init__(self, *, digest: str, num_look_ups: int, seed: int | None) -> None:
        self.digest = digest
        self.num_look_ups = num_look_ups
        self.seed = seed
        self.events: list[Event] = []
        self.keep: Callable[[Event], None] = lambda _: None
        """Writes an event where a restart finds it, before it counts."""
        self._state = FileAssignments(num_look_ups, seed=seed)

    @property
    def workers(self) -> list[int]:
        """Workers that took files and did not give them back."""
        return self._state.workers

    @property
    def has_files(self) -> bool:
        """Whether any file was found."""
        return bool(self._state.files)

    def take(self, worker: int, turn: int, epoch: int) -> FilePart | LookUp | None:
        """The file of a worker's turn; None: there are no more.

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
        """As `FileQueue.require_taken`."""
        self._state.taken(worker, turns, epoch)

    def found(self, look_up: int, files: Sequence[str]) -> None:
        """A worker has looked up files; who was later than another is not listened to."""
        if self._state.next_look_up == look_up:
            self._happen(self._state.found(files))

    def give_back(self, worker: int, progress: Progress | None) -> int:
        """As `FileQueue.give_back`."""
        event = self._state.give_back(worker, progress)
        if event is None:
            return 0
        self._happen(event)
        return len(event["give_back"][1])

    def replay(self, events: Sequence[Event]) -> None:
        """Brings it behind events of before; they are not kept again."""
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
    """All queues of a job, by name. Used by one thread at a time.

    Args:
        logs: Where a restart finds what has happened, and what is read first; None: nowhere.
    """

    def __init__(self, logs: QueueLogs | None = None) -> None:
        self._logs = logs
        self._queues: dict[str, JobQueue] = {}
        if logs is not None:
            self.load_state_dict(logs.read())

    @property
    def workers(self) -> set[int]:
        """Workers that took files of any queue and did not give them back."""
        return {worker for queue in self._queues.values() for worker in queue.workers}

    def open(self, name: str, *, digest: str, num_look_ups: int, seed: int | None) -> JobQueue:
        """The queue of a name; made where there is none.

        Raises:
            InvalidArgumentError: there is one of other patterns or another seed.
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
        """The queue of a name.

        Raises:
            InvalidArgumentError: there is none.
        """
        if name not in self._queues:
            raise InvalidArgumentError(f"file queue {name!r}: nobody took a file of it yet")
        return self._queues[name]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the positions of the workers, taken at the same moment or later."""
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
        """Goes on from a state; what was taken since then is taken again."""
        gone = self._queues.keys() - state.keys()
        self._queues.clear()
        for name, saved in state.items():
            self._add(name, {key: saved[key] for key in ("digest", "num_look_ups", "seed")}, saved["events"])
        if self._logs is not None:
            for name in gone:
                self._logs.drop(name)

    def close(self) -> None:
        """Nothing more happens to them."""
        if self._logs is not None:
            self._logs.close()

    def _add(self, name: str, facts: dict[str, Any], events: Sequence[Event]) -> JobQueue:
        queue = JobQueue(**facts)
        queue.replay(events)
        if self._logs is not None:
            queue.keep = self._logs.begin(name, facts, events).append
        self._queues[name] = queue
        return queue
