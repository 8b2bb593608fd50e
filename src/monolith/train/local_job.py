"""Job state of a single training process: queues of files, and inputs of workers of an earlier run.

With it a run of several processes can resume in one process, and vice versa.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.data.file_queue.queue import FileQueue, progress_in
from monolith.data.sources.file_patterns import FilePatterns
from monolith.job.queues import JobQueue, JobQueues, LookUp

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from monolith.data.file_queue.assignments import Event
    from monolith.data.file_queue.feed import FilePart

__all__ = ["LocalJob"]

_T = TypeVar("_T")

_OWNER = "local"
"""Owner of the pushes of a finished worker, in the saved state."""


class LocalJob:
    """A job of one process; a `Stateful` for ``TrainState(extra={"job": ...})``. Any thread may call it.

    Args:
        num_workers: Number of workers of the config.
        applied: Worker -> number of its last batch that is in the rows.
    """

    def __init__(self, *, num_workers: int = 1, applied: Callable[[], Mapping[int, int]]) -> None:
        self._num_workers = num_workers
        self._applied = applied
        self._lock = threading.Lock()  # guards what follows
        self._queues = JobQueues()
        self._num_shares = num_workers
        self._finished: dict[int, dict[str, dict[int, int]]] = {}

    @property
    def num_shares(self) -> int:
        """Shares that the input has: the number of workers that the run began with."""
        return self._num_shares

    def file_queue(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str = "files",
    ) -> FileQueue:
        """Returns a queue as `monolith.ps.JobClient.file_queue` does."""
        patterns = FilePatterns(paths, seed=seed, storage_options=storage_options)
        return _SharedQueue(self, patterns, name)

    def finish(self, worker: int, last: int | None = None) -> None:
        """Records that the input of a worker has ended.

        Args:
            worker: Its number.
            last: Number of its last batch, -1 if it had none; None: all of its batches are in the rows.
        """
        seq = self._applied().get(worker, -1) if last is None else last
        self._decide(lambda: self._happen("finish", [worker, seq]))

    def adopt_worker(self) -> int | None:
        """Returns a worker of an earlier run whose input has not ended, or None."""
        return self._decide(self._adopt)

    def reset(self) -> None:
        """Restarts the run from scratch."""
        with self._lock:
            self._queues.load_state_dict({})
            self._finished.clear()
            self._num_shares = self._num_workers

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in the form of a job's."""
        return self._decide(self._saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a checkpoint, of this process alone or of a job: its shares of the input stay as many."""
        self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        with self._lock:
            self._num_shares = int(state.get("num_shares", state["num_workers"]))
            self._queues.load_state_dict(state["queues"])
            self._finished = {
                int(worker): {owner: {int(each): seq for each, seq in seqs.items()} for owner, seqs in had.items()}
                for worker, had in state["finished"].items()
            }

    # What a job of several processes does otherwise

    def _decide(self, action: Callable[[], _T]) -> _T:
        """Calls a function that reads the state and decides on an action, under the lock."""
        with self._lock:
            return action()

    def _tell(self, kind: str, content: Any) -> None:
        """Called before a change of the state. REQUIRES: inside `_decide`."""

    # Inside `_decide`

    def _happen(self, kind: str, content: Any) -> None:
        self._tell(kind, content)
        self._apply(kind, content)

    def _apply(self, kind: str, content: Any) -> None:
        """Applies a change to the state, of any process."""
        if kind == "finish":
            worker, seq = content
            self._finished[worker] = {_OWNER: {worker: seq}}
        else:
            name, facts, event = content
            self._queues.open(name, **facts).replay([event])

    def _open(self, name: str, patterns: FilePatterns) -> JobQueue:
        facts: dict[str, Any] = {"digest": patterns.digest, "num_look_ups": len(patterns), "seed": patterns.seed}
        queue = self._queues.open(name, **facts)
        queue.keep = partial(self._tell_event, name, facts)
        return queue

    def _tell_event(self, name: str, facts: dict[str, Any], event: Event) -> None:
        self._tell("event", [name, facts, event])

    def _adopt(self) -> int | None:
        rest = self._unfinished()
        return rest[0] if rest else None

    def _unfinished(self) -> list[int]:
        applied = self._applied()
        # Of numbers below the number of workers there is a worker.
        begun = self._queues.workers.union(range(self._num_workers, self._num_shares))
        return sorted(worker for worker in begun if not self._is_finished(worker, applied))

    def _saved(self) -> dict[str, Any]:
        finished = {
            str(worker): {owner: {str(each): seq for each, seq in seqs.items()} for owner, seqs in had.items()}
            for worker, had in self._finished.items()
        }
        return {
            "num_workers": self._num_workers,
            "num_shares": self._num_shares,
            "finished": finished,
            "queues": self._queues.state_dict(),
        }

    def _is_finished(self, worker: int, applied: Mapping[int, int]) -> bool:
        had = self._finished.get(worker)
        last = applied.get(worker, -1)
        return had is not None and all(seqs.get(worker, -1) <= last for seqs in had.values())


class _SharedQueue(FileQueue):
    def __init__(self, job: LocalJob, patterns: FilePatterns, name: str) -> None:
        self._job, self._patterns, self._name = job, patterns, name
        self.digest = patterns.digest

    def take(self, worker: int, turn: int, *, epoch: int = 0) -> FilePart | None:
        return self._job._decide(partial(self._take, worker, turn, epoch))  # noqa: SLF001 - a part of it

    def require_taken(self, worker: int, turns: int, *, epoch: int = 0) -> None:
        self._job._decide(lambda: self._open().require_taken(worker, turns, epoch))  # noqa: SLF001 - a part of it

    def give_back(self, worker: int, position: bytes | None = None) -> int:
        progress = None if position is None else progress_in(position, worker=worker, digest=self.digest)
        return self._job._decide(lambda: self._open().give_back(worker, progress))  # noqa: SLF001 - a part of it

    def _take(self, worker: int, turn: int, epoch: int) -> FilePart | None:
        queue = self._open()
        while isinstance(found := queue.take(worker, turn, epoch), LookUp):
            queue.found(found.number, self._patterns.find(found.number))
        if found is None and not queue.has_files:
            raise self._patterns.nothing_found()
        return found

    def _open(self) -> JobQueue:
        return self._job._open(self._name, self._patterns)  # noqa: SLF001 - a part of it
