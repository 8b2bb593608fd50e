"""The coordinator of a job as the home server answers for it; `monolith.cluster.coordination` decides."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from monolith.cluster.coordination import Coordinator
from monolith.cluster.job_members import PlaceTakenError
from monolith.errors import InvalidArgumentError, OpError
from monolith.ps._control_handler import COORDINATOR, Send, make_handler
from monolith.ps._failures import failure_of
from monolith.ps._file_calls import FileCalls
from monolith.ps._job_wire import claim_in, place_in, state_message
from monolith.ps._news_streams import NewsStream, NewsStreams
from monolith.ps.protos import coordinator_pb2 as messages
from monolith.ps.protos import parameter_server_pb2
from monolith.ps.queue_logs import QueueLogs

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cluster.coordination import Clocks
    from monolith.cluster.credentials import ServerCredentials
    from monolith.cluster.job_state import JobState, Place

__all__ = ["CoordinatorService"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
"""How often members hear of more steps."""


class CoordinatorService(FileCalls):
    """The methods of the service by their names on the wire. Called by the threads of the server.

    A thread of its own, from the first member on, ends leases and tells members what has changed.

    Args:
        steps: Batches that the server has applied.
        clocks: Which they are, by owner and worker.
        log_folder: Where a restart finds who took which files; None: nowhere.
    """

    def __init__(
        self, *, steps: Callable[[], int], clocks: Callable[[], Clocks], log_folder: str | None = None
    ) -> None:
        logs = None if log_folder is None else QueueLogs(log_folder)
        super().__init__(require=self._require_seat, note_takers=self._take_note, logs=logs)
        self._steps = steps
        self._clocks = clocks
        self._streams = NewsStreams()
        self._looked_at = -_LOOK_SECONDS
        self._looking = threading.Lock()
        """Held while the figures of the server are read and noted: older ones never come after newer ones."""
        self._changed = threading.Condition()  # guards what follows
        self._coordinator = Coordinator(secrets.randbits(63), time.monotonic())
        self._told = self._coordinator.state(time.monotonic())
        self._has_news = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._tell_takers()

    @property
    def state(self) -> JobState:
        """The job as it is now."""
        with self._changed:
            return self._coordinator.state(time.monotonic())

    def handler(self, credentials: ServerCredentials) -> Any:
        """The service as gRPC wants it."""
        return make_handler(COORDINATOR, self, credentials, lasting={"Watch": self._watch})

    def dump(self) -> bytes:
        """What survives this process, together with clocks of the same moment or later."""
        with self._changed:
            return self._coordinator.dump()

    def load(self, content: bytes) -> None:
        """Goes on where a process before this one was."""
        with self._changed:
            self._coordinator.load(content)

    def close(self) -> None:
        """Sends all members away. Calling it again does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._streams.close()
        self.close_files()

    # Calls

    def Join(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """A process takes its place, or says again that it has it."""
        action = request.placed_action if request.HasField("placed_action") else None
        with self._changed:
            now = time.monotonic()
            try:
                incarnation = self._coordinator.join(
                    claim_in(request), num_workers=request.num_workers, placed_action=action, now=now
                )
            except PlaceTakenError as taken:
                return messages.JoinResponse(
                    taken=True,
                    owner=taken.owner,
                    seconds_since_renewal=taken.seconds_since_renewal,
                    seconds_left=taken.seconds_left,
                    renewals=taken.renewals,
                )
            self._begin()
            return messages.JoinResponse(incarnation=incarnation, state=self._spread(now))

    def Renew(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Keeps a lease."""
        late = self._streams.heard(request.seat.token)
        with self._changed:
            now = time.monotonic()
            self._coordinator.renew(place_in(request.seat), request.seat.token, progress=request.progress, now=now)
            self._spread(now)
            if late:
                self._wake()
        return messages.StateResponse()

    def Leave(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """A process gives up its place."""
        with self._changed:
            now = time.monotonic()
            self._coordinator.leave(place_in(request.seat), request.seat.token, now=now)
            self._spread(now)
        return parameter_server_pb2.Done()

    def Change(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """A member says something that all are to know."""
        kind = request.WhichOneof("change")
        if kind == "reset":
            self._require_seat(place_in(request.seat), request.seat.token)
            self.load_state_dict({})
        with self._looking:
            clocks = self._clocks() if kind in ("finish", "release") else {}
            steps = self._steps() if kind in ("finish", "release", "left", "restored_step") else None
            with self._changed:
                now = time.monotonic()
                _apply(request, self._coordinator, clocks, steps, now)
                return messages.StateResponse(state=self._spread(now))

    def Adopt(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """A number that was lost, for a worker that is done with its own."""
        with self._changed:
            now = time.monotonic()
            worker = self._coordinator.adopt(place_in(request.seat), request.seat.token, now=now)
            return messages.AdoptResponse(worker=worker, state=self._spread(now))

    def SaveJob(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """What a checkpoint keeps of the job."""
        with self._changed:
            now = time.monotonic()
            self._coordinator.require(place_in(request.seat), request.seat.token, now=now)
            # Finished numbers first: what they say holds for all that comes later.
            saved = self._coordinator.state_dict()
        content = json.dumps({**saved, "queues": self.state_dict()}, sort_keys=True)
        return messages.SavedJob(content=content.encode())

    def LoadJob(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Goes on from a checkpoint."""
        content = json.loads(request.content)
        self._require_seat(place_in(request.seat), request.seat.token)
        self.load_state_dict(content["queues"])
        with self._changed:
            now = time.monotonic()
            self._coordinator.restore(content, now)
            return messages.StateResponse(state=self._spread(now))

    # Inside

    def _require_seat(self, place: Place, token: int) -> None:
        with self._changed:
            self._coordinator.require(place, token, now=time.monotonic())

    def _take_note(self, takers: set[int]) -> None:
        with self._changed:
            self._coordinator.note_takers(takers)
            self._spread(time.monotonic())

    def _watch(self, request: Any, context: Any, send: Send) -> None:
        token = request.seat.token
        stream = NewsStream(token, send)
        try:
            with self._changed:
                self._coordinator.connect(place_in(request.seat), token, now=time.monotonic())
                self._streams.add(stream)
                self._begin()
                self._wake()
        except OpError as error:
            send(messages.News(failure=failure_of(error)))
            send(None)
            return
        if not context.add_callback(lambda: self._unwatch(stream)):
            self._unwatch(stream)  # it is gone already

    def _unwatch(self, stream: NewsStream) -> None:
        if self._streams.remove(stream):
            with self._changed:
                now = time.monotonic()
                self._coordinator.disconnect(stream.token, now=now)
                self._wake()  # its time runs out sooner

    def _spread(self, now: float) -> Any:
        """The state behind an event, to answer with; all others hear of it. REQUIRES: the condition is held."""
        state = self._coordinator.state(now)
        if state.version != self._told.version:
            self._wake()
        return state_message(state)

    def _wake(self) -> None:
        self._has_news = True
        self._changed.notify_all()

    def _begin(self) -> None:
        """Starts the thread with the first member. REQUIRES: the condition is held."""
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._tell, name="job-coordinator", daemon=True)
            self._thread.start()

    def _tell(self) -> None:
        while (state := self._next_state()) is not None:
            try:
                self._streams.send(state)
            except Exception:  # noqa: BLE001 - the others are to hear the next news
                _log.exception("members of the job could not be told")

    def _next_state(self) -> JobState | None:
        """What is to be told, when it is due; None: the server ends."""
        if time.monotonic() >= self._looked_at + _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            with self._looking:
                steps, clocks = self._steps(), self._clocks()
                with self._changed:
                    self._coordinator.tick(steps=steps, clocks=clocks, now=time.monotonic())
        with self._changed:
            now = time.monotonic()
            self._coordinator.pass_time(now)
            state = self._coordinator.state(now)
            if state.version == self._told.version and not self._has_news:
                self._changed.wait_for(lambda: self._has_news or self._is_closed, self._pause(now))
                state = self._coordinator.state(time.monotonic())
            self._has_news = False
            self._told = state
            return None if self._is_closed else state

    def _pause(self, now: float) -> float | None:
        """How long nothing will happen by itself; None: nothing will."""
        end = self._coordinator.next_end(now)
        if end is None:
            return _LOOK_SECONDS if len(self._streams) else None
        return max(0.0, min(_LOOK_SECONDS, end - now))


_AS_LOADED = -1
"""In place of a step: the one that what was loaded of the job gives."""


def _apply(request: Any, job: Coordinator, clocks: Clocks, steps: int | None, now: float) -> None:
    """Tells the coordinator what a member wants to change."""
    who = place_in(request.seat), request.seat.token
    if steps is not None:
        job.note_steps(steps)  # who hears that a worker is done hears of all its steps
    flag, release, lost = request.flag, request.release, request.lost_updates
    changes: dict[str | None, Callable[[], None]] = {
        "flag": lambda: job.set_flag(*who, index=flag.index, value=flag.value, now=now),
        "place_barrier": lambda: job.place_barrier(*who, action=request.place_barrier, now=now),
        "remove_barrier": lambda: job.remove_barrier(*who, now=now),
        "waits": lambda: job.set_waits(*who, value=request.waits, now=now),
        "step_offset": lambda: job.set_step_offset(*who, offset=request.step_offset, now=now),
        "restored_step": lambda: job.set_restored(
            *who, step=_step_in(request), generation=1 + secrets.randbits(62), now=now
        ),
        "left": lambda: job.set_left(*who, now=now),
        "ended": lambda: job.set_ended(*who, now=now),
        "finish": lambda: job.finish(*who, clocks=clocks, now=now),
        "release": lambda: job.release(*who, worker=release.worker, finished=release.finished, clocks=clocks, now=now),
        "lost_updates": lambda: job.report_lost(
            *who,
            worker=lost.worker,
            server=lost.server,
            batches=range(lost.first, lost.first + lost.updates),
            now=now,
        ),
        "stop": lambda: job.request_stop(*who, now=now),
        "reset": lambda: job.reset(*who, now=now),
    }
    kind = request.WhichOneof("change")
    if kind not in changes:
        raise InvalidArgumentError(f"change: one of {', '.join(map(str, changes))} expected, got {kind}")
    changes[kind]()


def _step_in(request: Any) -> int | None:
    return None if request.restored_step == _AS_LOADED else int(request.restored_step)
