"""Share of the input that a worker reads: a fixed one, or the next file of a queue that all workers share."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from monolith.data import Dataset, WorkerShare
from monolith.data.file_queue import QueuedFiles
from monolith.data.sources import FileSet
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.data.file_queue import FileQueue
    from monolith.data.sources import Files, Paths, StorageOptions


class KnowsShares(Protocol):
    """Provides the number of shares of the input: `monolith.ps.JobClient`, or `LocalJob`."""

    @property
    def num_shares(self) -> int:
        """Number of workers that the run started with."""


class HasFileQueues(Protocol):
    """Provides queues of files: `monolith.ps.JobClient`, or `LocalJob` of a single process."""

    def file_queue(
        self, paths: Paths, *, seed: int | None = None, storage_options: StorageOptions = None, name: str = "files"
    ) -> FileQueue:
        """Returns the queue of a name."""


class HasInputs(KnowsShares, HasFileQueues, Protocol):
    """The input of all processes of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShares:
    """The share of one worker; unpacked, its number and how many there are: ``dataset.share(*self.ctx.shares)``."""

    worker: int = 0
    """Worker whose input it is: this process, or a lost worker that it continues for."""
    num_workers: int = 1
    """Shares that the input has: as many as workers when the run began."""
    job: KnowsShares | None = None
    """Job whose input is shared; None: no job to resume."""
    queues: HasFileQueues | None = None
    """Source of files; None: every worker has a fixed share."""

    @property
    def is_empty(self) -> bool:
        """Returns whether the run started with fewer workers, so that there is no share for this one."""
        return self.queues is None and self.worker >= self.num_workers

    def for_number(self, worker: int) -> InputShares:
        """Returns the share of a worker, by the number of workers that the run started with."""
        shares = self.num_workers if self.job is None else self.job.num_shares
        return replace(self, worker=worker, num_workers=shares)

    def files(
        self, paths: Paths, *, seed: int | None = None, storage_options: StorageOptions = None, name: str = "files"
    ) -> Files:
        """Returns the files of this worker, for a dataset."""
        if self.queues is None:
            shard = self.worker, self.num_workers
            return FileSet(paths, shard=shard, seed=seed, storage_options=storage_options)
        queue = self.queues.file_queue(paths, seed=seed, storage_options=storage_options, name=name)
        return QueuedFiles(queue, worker=self.worker, storage_options=storage_options)

    def __iter__(self) -> Iterator[int]:
        return iter((self.worker, self.num_workers))

    def of(self, source: Any) -> Any:
        """Returns the share of the result of an `input_fn`; a dataset that is a worker's share already is unchanged."""
        if self.num_workers == 1 and self.queues is None:
            return source
        if isinstance(source, Dataset):
            queue = None if self.queues is None else self._queued(self.queues)
            return source.for_worker(WorkerShare(self.worker, self.num_workers, queue))
        if self.num_workers == 1:
            return source
        raise InvalidArgumentError(
            f"input: input_fn returns a {type(source).__name__}, which {self.num_workers} workers cannot share, and"
            " each would train on all of it; return a dataset of monolith.data, or the batches of this worker alone"
            " (index, count = self.ctx.shares; return itertools.islice(batches, index, None, count)), or"
            " self.ctx.unshared(batches) if each worker is to train all of them"
        )

    def _queued(self, queues: HasFileQueues) -> Callable[[FileSet], Files]:
        numbers = itertools.count()  # every worker opens the queues of its datasets in the same order

        def files_of(files: FileSet) -> Files:
            queue = queues.file_queue(
                files.files, seed=files.seed, storage_options=files.storage_options, name=f"input-{next(numbers)}"
            )
            return QueuedFiles(queue, worker=self.worker, storage_options=files.storage_options)

        return files_of
