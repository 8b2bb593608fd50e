"""Client of a file queue that the workers of a job share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from monolith.data.file_queue.feed import FilePart
from monolith.data.file_queue.queue import FileQueue, progress_in
from monolith.data.sources.file_patterns import FilePatterns
from monolith.errors import InvalidArgumentError
from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from monolith.job.coordinator_connection import JobLine

__all__ = ["JobFileQueue"]


class JobFileQueue(FileQueue):
    """Files that the workers of a job share. Thread-safe.

    The worker that needs more files lists them, with its own access: the home server needs none.

    Args:
        line: Connection to the coordinator.
        name: Name of the queue; a job may have several.
        paths: As for `LocalFileQueue`; the same for all workers.
        seed: As for `LocalFileQueue`.
        storage_options: Options of the file system of URLs.
    """

    def __init__(
        self,
        line: JobLine,
        name: str,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._line = line
        self.name = name
        self._patterns = FilePatterns(paths, seed=seed, storage_options=storage_options)
        self.digest = self._patterns.digest

    def take(self, worker: int, turn: int, *, epoch: int = 0) -> FilePart | None:
        """Returns the file of a worker's `turn`, from 0; None: there are no more."""
        while True:
            answer = self._line.ask("TakeFile", self._request(worker, turn, epoch))
            if not answer.HasField("look_up"):
                break
            found = messages.FoundFilesRequest(
                queue=self.name, look_up=answer.look_up, files=self._patterns.find(answer.look_up)
            )
            self._line.ask("FoundFiles", found)
        if answer.HasField("path"):
            return FilePart(answer.path, json.loads(answer.place) if answer.place else None)
        if answer.nothing_found:
            raise self._patterns.nothing_found()
        return None

    def require_taken(self, worker: int, turns: int, *, epoch: int = 0) -> None:
        """Raises if a worker resumes after more files than the queue has assigned to it."""
        request = self._request(worker, turns, epoch)
        request.only_look = True
        self._line.ask("TakeFile", request)

    def give_back(self, worker: int, position: bytes | None = None) -> int:
        """Returns the unread files of a lost worker to the queue; its index is not used again."""
        request = messages.GiveBackRequest(queue=self.name, worker=worker)
        if position is not None:
            progress = progress_in(position, worker=worker, digest=self.digest)
            content = [progress.epoch, progress.turns, sorted(progress.places.items())]
            request.progress = json.dumps(content).encode()
        return int(self._line.ask("GiveBack", request).files)

    def _request(self, worker: int, turn: int, epoch: int) -> messages.TakeFileRequest:
        if worker < 0:
            raise InvalidArgumentError(f"file queue of a job: there is no worker {worker}")
        return messages.TakeFileRequest(
            queue=self.name,
            digest=self.digest,
            num_look_ups=len(self._patterns),
            seed=self._patterns.seed,
            worker=worker,
            turn=turn,
            epoch=epoch,
        )
