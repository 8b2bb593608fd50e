"""Files that workers share: each takes the next one when it is done with one, so a slow worker reads fewer.

`FileQueue` is what a reading needs of one; `LocalFileQueue` serves the threads of a process, and
`monolith.ps.JobClient.file_queue` the processes of a job, wherever they are. `HostedFileQueue` is any of them, for the
assignments of a host.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from monolith.data.file_queue.assignments import FileAssignments, LookUp, WorkerProgress
from monolith.data.pipeline.stage import whole_number
from monolith.data.position import SavedPosition
from monolith.data.sources.file_patterns import FilePatterns, open_file
from monolith.data.sources.file_set import FileFeed, FilePart, Files
from monolith.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from monolith.data.file_queue.assignments import Assignments
    from monolith.data.sources.file_patterns import Paths, StorageOptions

_KIND = "queued_files"


class FileQueue(ABC):
    """Assigns every file to one worker, in each epoch.

    A worker's files are numbered in the order in which it took them. The queue stores all assignments, so a worker that
    resumes from a saved position gets the same files for the same numbers, and nothing is lost or read twice, whenever
    each worker saved its own position.
    """

    digest: str
    """A short text that differs when patterns or seed do; positions carry it."""

    @abstractmethod
    def take(self, worker: int, turn: int, *, epoch: int = 0) -> FilePart | None:
        """Returns the file of a worker's turn, from 0 on; None when there are no more.

        A repeated turn returns the same file; the next turn takes a file out of the queue.

        Raises:
            FailedPreconditionError: the worker's turns are ahead of the queue's state, or it gave back its files.
            NotFoundError: no pattern matches any file.
        """

    @abstractmethod
    def require_taken(self, worker: int, turns: int, *, epoch: int = 0) -> None:
        """Refuses to resume after more turns of a worker than the queue has recorded.

        Raises:
            FailedPreconditionError: the queue's state is older than the position; or the worker gave back its files.
        """

    @abstractmethod
    def give_back(self, worker: int, position: bytes | None = None) -> int:
        """Returns the unread files of a worker that will not restart to the queue; retires its number.

        Args:
            worker: Its number.
            position: The last valid position of its file dataset, such as ``RecordDataset(QueuedFiles(...))`` itself;
                None: all files that it ever took are read again. The position of a pipeline that buffers rows (`batch`,
                `shuffle`) covers more than files: resume from it under the same worker number instead.

        Returns:
            Number of files, and parts of files, that other workers will now read. Call it before they reach their end.
        """


class HostedFileQueue(FileQueue):
    """A queue whose assignments any host has; workers list the files, each with its own access. Thread-safe.

    Args:
        patterns: Patterns of the files; the same for all workers.
        decide: Calls a function with the assignments, which are locked during the call, and returns its result. May
            call the function several times.
        num_workers: Number of workers, numbered from 0 on; None: any number.
    """

    def __init__(
        self,
        patterns: FilePatterns,
        decide: Callable[[Callable[[Assignments], Any]], Any],
        *,
        num_workers: int | None = None,
    ) -> None:
        self._patterns = patterns
        self._decide = decide
        self._num_workers = num_workers
        self.digest = patterns.digest

    def take(self, worker: int, turn: int, *, epoch: int = 0) -> FilePart | None:
        """Returns the file of a worker's turn, from 0 on; None when there are no more."""
        if worker < 0 or (self._num_workers is not None and worker >= self._num_workers):
            workers = "a job" if self._num_workers is None else f"{self._num_workers} workers"
            raise InvalidArgumentError(f"file queue of {workers}: there is no worker {worker}")
        while isinstance(part := self._decide(lambda state: state.take(worker, turn, epoch)), LookUp):
            if part.number is None:
                raise self._patterns.nothing_found()
            self._list(part.number)
        taken: FilePart | None = part
        return taken

    def require_taken(self, worker: int, turns: int, *, epoch: int = 0) -> None:
        """Refuses to resume after more turns of a worker than the queue has recorded."""
        self._decide(lambda state: state.require_taken(worker, turns, epoch))

    def give_back(self, worker: int, position: bytes | None = None) -> int:
        """Returns the unread files of a worker that will not restart to the queue; retires its number."""
        progress = None if position is None else progress_in(position, worker=worker, digest=self.digest)
        return int(self._decide(lambda state: state.give_back(worker, progress)))

    def _list(self, number: int) -> None:
        files = self._patterns.find(number)  # not locked: may take long
        self._decide(lambda state: state.found(number, files))


class EventQueue(HostedFileQueue):
    """Base of the queues of one machine: each process has the assignments.

    Args:
        paths: Paths, globs, ranges and URLs as for `FileSet`. Each pattern is expanded when the files of earlier ones
            are taken.
        num_workers: Number of workers, numbered from 0 on. Files of removed workers must have been given back.
        seed: Shuffles the files of each pattern, or of a list of names, differently in each epoch; None: sorted.
        storage_options: For the file system of URLs.
    """

    _num_workers: int

    def __init__(
        self, paths: Paths, *, num_workers: int, seed: int | None = None, storage_options: StorageOptions = None
    ) -> None:
        patterns = FilePatterns(paths, seed=seed, storage_options=storage_options)
        whole_number("num_workers", num_workers, at_least=1)
        super().__init__(patterns, self._decide_here, num_workers=num_workers)
        self._lock = threading.Lock()
        self._state = self._new_state()

    def waiting(self, epoch: int = 0) -> int:
        """Returns the number of found files and parts that are not assigned in this epoch."""
        with self._exclusive():
            return self._state.waiting(epoch)

    def _decide_here(self, action: Callable[[Assignments], Any]) -> Any:
        with self._exclusive():
            return action(self._state)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Locks the state and brings it up to date."""
        with self._lock:
            yield

    def _new_state(self) -> FileAssignments:
        return FileAssignments(**self._patterns.facts)

    def _check_workers(self, state: FileAssignments) -> None:
        """Refuses a state in which files are with workers that there are not."""
        if others := [worker for worker in state.workers if worker >= self._num_workers]:
            raise FailedPreconditionError(
                f"file queue of {self._num_workers} workers: files are with worker {', '.join(map(str, others))} of "
                "before; open it for as many workers as then, and give_back those"
            )


class LocalFileQueue(EventQueue):
    """Files that the threads of one process share. Thread-safe.

    A checkpoint stores `state_dict` along with the positions of the workers, taken at the same time or later: pass the
    queue to ``TrainState(extra={"files": queue})``.

    >>> queue = LocalFileQueue(["a", "b", "c"], num_workers=2)
    >>> [queue.take(worker, turn).path for worker, turn in [(0, 0), (1, 0), (1, 1), (0, 0)]]
    ['a', 'b', 'c', 'a']
    >>> queue.take(0, 1) is None
    True
    """

    def state_dict(self) -> dict[str, Any]:
        """Returns all events, as JSON."""
        with self._exclusive():
            return {"digest": self.digest, "events": list(self._state.events)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state; open readings must not be continued.

        Raises:
            InvalidArgumentError: the state is of a queue with other patterns or seed.
            FailedPreconditionError: files are assigned to workers that no longer exist.
        """
        if state["digest"] != self.digest:
            raise InvalidArgumentError("file queue: the state is that of a queue of other patterns or another seed")
        restored = self._new_state()
        restored.replay(state["events"])
        self._check_workers(restored)
        with self._exclusive():
            self._state = restored


def progress_in(position: bytes, *, worker: int, digest: str) -> WorkerProgress:
    """Returns the progress of a worker of a queue, by the position of its dataset.

    Raises:
        InvalidArgumentError: the position is of another worker, another queue, or of a pipeline.
    """
    saved = SavedPosition(position, _KIND).require_same(digest=digest, worker=worker)
    try:
        places = {int(turn): place for turn, place in saved.values("open")}
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"position for a dataset of kind {_KIND!r}: {error}") from error
    return WorkerProgress(saved.number("epoch"), saved.number("next_file"), places)


class QueuedFiles(Files):
    """The files of a worker from a queue: pass it to a `RecordDataset` or `ParquetDataset` in place of files.

    Args:
        queue: Queue that the workers share.
        worker: Number of this worker.
        storage_options: For the file system of URLs, such as the address of an object store.
    """

    def __init__(self, queue: FileQueue, *, worker: int, storage_options: StorageOptions = None) -> None:
        self._queue = queue
        self._worker = whole_number("worker", worker, at_least=0)
        self._options = dict(storage_options or {})

    def feed(self, epoch: int) -> FileFeed:
        """Returns this worker's files of an epoch."""
        return _QueueFeed(self._queue, self._worker, epoch)

    @property
    def is_share(self) -> bool:
        """Always True: the queue assigns every file to one worker."""
        return True

    def share(self, index: int, count: int) -> Files | None:  # noqa: ARG002 - always refused
        """Raises: the queue itself assigns files to workers by their numbers."""
        raise InvalidArgumentError(
            "share: files of a queue are shared out by the queue; give each process QueuedFiles(queue, worker=...) of"
            " its own, or read a FileSet"
        )

    def __repr__(self) -> str:
        return f"queue, worker={self._worker}"

    def open(self, path: str) -> BinaryIO:
        """Returns a file, open to read from its start."""
        return open_file(path, self._options)


class _QueueFeed(FileFeed):
    kind = _KIND

    def __init__(self, queue: FileQueue, worker: int, epoch: int) -> None:
        self._queue, self._worker, self._epoch = queue, worker, epoch
        self.fields = {"digest": queue.digest, "epoch": epoch, "worker": worker}

    def take(self, number: int) -> FilePart | None:
        return self._queue.take(self._worker, number, epoch=self._epoch)

    def require_taken(self, count: int) -> None:
        self._queue.require_taken(self._worker, count, epoch=self._epoch)
