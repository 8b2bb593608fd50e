"""What a process that trains alone keeps of a job: queues of files, and inputs of workers that were there before it.

So a run of several processes goes on in one, and back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monolith.data.sources.file_patterns import FilePatterns
from monolith.data.sources.file_queue import FileQueue, progress_in
from monolith.ps.job_queues import JobQueue, JobQueues, LookUp
from monolith.ps.saved_job import require_same_shares

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from monolith.data.sources.file_feed import FilePart

__all__ = ["LocalJob"]

_OWNER = "local"
"""Who has what a finished worker has pushed, in what is saved."""


class LocalJob:
    """A job of one process; a `Stateful` for ``TrainState(extra={"job": ...})``. Any thread may call it.

    Args:
        num_workers: As the config says.
        applied: Worker -> number of its last batch that is in the rows.
    """

    def __init__(self, *, num_workers: int = 1, applied: Callable[[], Mapping[int, int]]) -> None:
        self._num_workers = num_workers
        self._applied = applied
        self._lock = threading.Lock()  # guards what follows
        self._queues = JobQueues()
        self._finished: dict[int, dict[str, dict[int, int]]] = {}

    def file_queue(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str = "files",
    ) -> FileQueue:
        """As `monolith.ps.JobClient.file_queue`."""
        patterns = FilePatterns(paths, seed=seed, storage_options=storage_options)
        return _LocalQueue(self._queues, self._lock, patterns, name)

    def finish(self, worker: int) -> None:
        """The input of a worker has ended, and all of it is in the rows."""
        with self._lock:
            self._finished[worker] = {_OWNER: {worker: self._applied().get(worker, -1)}}

    def adopt_worker(self) -> int | None:
        """A worker of before whose input has not ended; None: there is none."""
        with self._lock:
            applied = self._applied()
            rest = sorted(worker for worker in self._queues.workers if not self._is_finished(worker, applied))
            return rest[0] if rest else None

    def reset(self) -> None:
        """The run begins anew."""
        with self._lock:
            self._queues.load_state_dict({})
            self._finished.clear()

    def state_dict(self) -> dict[str, Any]:
        """As that of a job."""
        with self._lock:
            finished = {
                str(worker): {owner: {str(each): seq for each, seq in seqs.items()} for owner, seqs in had.items()}
                for worker, had in self._finished.items()
            }
            return {"num_workers": self._num_workers, "finished": finished, "queues": self._queues.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint, of this process alone or of a job.

        Raises:
            FailedPreconditionError: workers have fixed shares of the input, and were as many others then.
        """
        require_same_shares(state, self._num_workers)
        with self._lock:
            self._queues.load_state_dict(state["queues"])
            self._finished = {
                int(worker): {owner: {int(each): seq for each, seq in seqs.items()} for owner, seqs in had.items()}
                for worker, had in state["finished"].items()
            }

    def _is_finished(self, worker: int, applied: Mapping[int, int]) -> bool:
        had = self._finished.get(worker)
        last = applied.get(worker, -1)
        return had is not None and all(seqs.get(worker, -1) <= last for seqs in had.values())


class _LocalQueue(FileQueue):
    def __init__(self, queues: JobQueues, lock: threading.Lock, patterns: FilePatterns, name: str) -> None:
        self._queues, self._lock, self._patterns, self._name = queues, lock, patterns, name
        self.digest = patterns.digest

    def take(self, worker: int, turn: int, *, epoch: int = 0) -> FilePart | None:
        with self._lock:
            queue = self._open()
            while isinstance(found := queue.take(worker, turn, epoch), LookUp):
                queue.found(found.number, self._patterns.find(found.number))
            if found is None and not queue.has_files:
                raise self._patterns.nothing_found()
            return found

    def require_taken(self, worker: int, turns: int, *, epoch: int = 0) -> None:
        with self._lock:
            self._open().require_taken(worker, turns, epoch)

    def give_back(self, worker: int, position: bytes | None = None) -> int:
        progress = None if position is None else progress_in(position, worker=worker, digest=self.digest)
        with self._lock:
            return self._open().give_back(worker, progress)

    def _open(self) -> JobQueue:
        patterns = self._patterns
        return self._queues.open(self._name, digest=patterns.digest, num_look_ups=len(patterns), seed=patterns.seed)
