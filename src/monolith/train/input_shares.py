"""Which files a worker reads: a fixed share of them, or the next one of a queue that all workers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from monolith.data.sources.file_queue import QueuedFiles
from monolith.data.sources.file_set import FileSet

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from monolith.data.sources.file_feed import Files
    from monolith.data.sources.file_queue import FileQueue

__all__ = ["HasFileQueues", "InputShares"]


class HasFileQueues(Protocol):
    """What has queues of files: `monolith.ps.JobClient`, or `LocalJob` of a process that is alone."""

    def file_queue(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str = "files",
    ) -> FileQueue:
        """The queue of a name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShares:
    """The share of one worker."""

    worker: int = 0
    """Whose input it is: that of this process, or of a lost worker that it goes on for."""
    num_workers: int = 1
    queues: HasFileQueues | None = None
    """Where files come from; None: every worker has a fixed share."""

    def files(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str = "files",
    ) -> Files:
        """The files of this worker, for a dataset."""
        if self.queues is None:
            shard = self.worker, self.num_workers
            return FileSet(paths, shard=shard, seed=seed, storage_options=storage_options)
        queue = self.queues.file_queue(paths, seed=seed, storage_options=storage_options, name=name)
        return QueuedFiles(queue, worker=self.worker, storage_options=storage_options)
