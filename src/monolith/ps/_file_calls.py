"""What the coordinator does for workers that share files; a part of `CoordinatorService`."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from monolith.data.sources.file_assignments import Progress
from monolith.ps._job_wire import place_in
from monolith.ps.job_queues import JobQueues, LookUp
from monolith.ps.protos import coordinator_pb2 as messages
from monolith.ps.protos import parameter_server_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cluster.job_state import Place
    from monolith.ps.queue_logs import QueueLogs

__all__ = ["FileCalls"]


class FileCalls:
    """The methods about files, by their names on the wire. Called by the threads of the server; a lock guards them.

    Args:
        require: Refuses who does not hold its place.
        note_takers: Told which workers have files.
        logs: Where a restart finds who took which; None: nowhere.
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
        self._lock = threading.Lock()  # guards what follows; its events may wait for a disk, and membership must not
        self._queues = JobQueues(logs)
        self._takers: set[int] = set()

    def TakeFile(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Whose a file is."""
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
        """A worker has looked up files."""
        self._require(place_in(request.seat), request.seat.token)
        with self._lock:
            self._queues.find(request.queue).found(request.look_up, request.files)
        return parameter_server_pb2.Done()

    def GiveBack(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Others read what a worker had not read."""
        self._require(place_in(request.seat), request.seat.token)
        progress = None
        if request.HasField("progress"):
            epoch, turns, places = json.loads(request.progress)
            progress = Progress(epoch, turns, dict(places))
        with self._lock:
            files = self._queues.find(request.queue).give_back(request.worker, progress)
            self._tell_takers()
        return messages.GiveBackResponse(files=files)

    def state_dict(self) -> dict[str, Any]:
        """As `JobQueues.state_dict`."""
        with self._lock:
            return self._queues.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `JobQueues.load_state_dict`."""
        with self._lock:
            self._queues.load_state_dict(state)
            self._tell_takers()

    def close_files(self) -> None:
        """Nothing more is handed out, or written."""
        with self._lock:
            self._queues.close()

    def _tell_takers(self) -> None:
        takers = self._queues.workers
        if takers != self._takers:
            self._takers = takers
            self._note_takers(takers)
