"""Calls of workers that share files; a part of `CoordinatorService`."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from monolith.data.file_queue.assignments import WorkerProgress
from monolith.job.queues import JobQueues, LookUp
from monolith.job.wire import place_in
from monolith.rpc.protos import coordinator_pb2 as messages
from monolith.rpc.protos import parameter_server_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.job.queue_logs import QueueLogs
    from monolith.job.state import Place

__all__ = ["FileCalls"]


class FileCalls:
    """The methods about files, by their names on the wire. Called by server threads; a lock guards them.

    Args:
        require: Raises if the caller does not hold its index.
        note_takers: Receives the workers that have files.
        logs: Logs of file assignments, for a restart; None: no logs.
    """

    def __init__(
        self,
        *,
        require: Callable[[Place, int], None],
        note_takers: Callable[[set[int]], None],
        logs: QueueLogs | None = None,
    ) -> None:
        self._require = require
        self._note_takers = note_takers
        self._lock = threading.Lock()  # guards the fields below; may block on disk, which membership must not
        self._queues = JobQueues(logs)
        self._takers: set[int] = set()

    def TakeFile(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Assigns a file to a worker."""
        self._require(place_in(request.seat), request.seat.token)
        with self._lock:
            queue = self._queues.open(
                request.queue,
                digest=request.digest,
                num_look_ups=request.num_look_ups,
                seed=request.seed if request.HasField("seed") else None,
            )
            if request.only_look:
                queue.require_taken(request.worker, request.turn, request.epoch)
                return messages.TakeFileResponse()
            found = queue.take(request.worker, request.turn, request.epoch)
            self._tell_takers()
            if isinstance(found, LookUp):
                return messages.TakeFileResponse(look_up=found.number)
            if found is None:
                return messages.TakeFileResponse(nothing_found=not queue.has_files)
            place = "" if found.place is None else json.dumps(found.place)
            return messages.TakeFileResponse(path=found.path, place=place)

    def FoundFiles(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Adds the files that a worker has listed."""
        self._require(place_in(request.seat), request.seat.token)
        with self._lock:
            self._queues.find(request.queue).found(request.look_up, request.files)
        return parameter_server_pb2.Done()

    def GiveBack(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Returns the unread files of a worker to the queue, for the other workers."""
        self._require(place_in(request.seat), request.seat.token)
        progress = None
        if request.HasField("progress"):
            epoch, turns, places = json.loads(request.progress)
            progress = WorkerProgress(epoch, turns, dict(places))
        with self._lock:
            files = self._queues.find(request.queue).give_back(request.worker, progress)
            self._tell_takers()
        return messages.GiveBackResponse(files=files)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the queues; see `JobQueues.state_dict`."""
        with self._lock:
            return self._queues.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the queues; see `JobQueues.load_state_dict`."""
        with self._lock:
            self._queues.load_state_dict(state)
            self._tell_takers()

    def close_files(self) -> None:
        """Closes the queues and their logs."""
        with self._lock:
            self._queues.close()

    def _tell_takers(self) -> None:
        takers = self._queues.workers
        if takers != self._takers:
            self._takers = takers
            self._note_takers(takers)
