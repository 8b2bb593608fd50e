"""File queues shared by the workers of a job, by name: workers list files, and request their assignments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.data.file_queue import FileAssignments
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.data.file_queue import Event
    from monolith.job.queue_logs import QueueLogs


class JobQueues:
    """All queues of a job, by name. Not thread-safe.

    Args:
        logs: Event logs, which are read first and make a restart possible; None: no logs.
    """

    def __init__(self, logs: QueueLogs | None = None) -> None:
        self._logs = logs
        self._queues: dict[str, FileAssignments] = {}
        if logs is not None:
            self.load_state_dict(logs.read())

    @property
    def workers(self) -> set[int]:
        """Workers that took files of any queue and did not return them."""
        return {worker for queue in self._queues.values() for worker in queue.workers}

    def open(self, name: str, *, digest: str, num_look_ups: int, seed: int | None) -> FileAssignments:
        """Returns the queue of a name; creates it if missing.

        Raises:
            InvalidArgumentError: the queue has other patterns or another seed.
        """
        queue = self._queues.get(name)
        if queue is None:
            queue = self._add(name, {"digest": digest, "num_look_ups": num_look_ups, "seed": seed}, ())
        if queue.facts["digest"] != digest:
            raise InvalidArgumentError(
                f"file queue {name!r} of this job is of other patterns or another seed: all workers give the same"
            )
        return queue

    def find(self, name: str) -> FileAssignments:
        """Returns the queue of a name.

        Raises:
            InvalidArgumentError: there is none.
        """
        if name not in self._queues:
            raise InvalidArgumentError(f"file queue {name!r}: no worker has taken a file of it yet")
        return self._queues[name]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint; capture it together with the positions of the workers, or later."""
        return {name: {**queue.facts, "events": list(queue.events)} for name, queue in sorted(self._queues.items())}

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

    def _add(self, name: str, facts: dict[str, Any], events: Sequence[Event]) -> FileAssignments:
        queue = FileAssignments(**facts)
        queue.replay(events)
        if self._logs is not None:
            queue.keep = self._logs.begin(name, facts, events).append
        self._queues[name] = queue
        return queue
