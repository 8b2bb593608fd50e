"""gRPC service of the job's coordinator, on the home server; `monolith.job.coordination` has the logic."""

from __future__ import annotations

import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.background import END, Backoff, End, PeriodicThread
from monolith.data.file_queue import LookUp, WorkerProgress
from monolith.errors import InvalidArgumentError, OpError
from monolith.job.coordination import Coordinator
from monolith.job.members import PlaceTakenError
from monolith.job.queue_logs import QueueLogs
from monolith.job.queues import JobQueues
from monolith.job.wire import claim_in, place_in, state_message
from monolith.rpc import COORDINATOR, Send, failure_of, make_handler
from monolith.rpc.protos import coordinator_pb2 as messages
from monolith.rpc.protos import parameter_server_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.job.coordination import Clocks
    from monolith.job.state import JobState, Place
    from monolith.rpc import ServerCredentials


_LOOK_SECONDS = 0.2
"""How often members receive new step counts."""
_AGAIN_SECONDS = 0.01
"""Pause after an error. Shorter than the above: while step counts cannot be read, leases are still looked after."""


class CoordinatorService:
    """The methods of the service by their names on the wire. Called by server threads.

    A thread, started with the first member, expires leases and notifies members of changes.

    Args:
        steps: Returns the number of batches that the server has applied.
        clocks: Returns the last applied batches, by owner and worker.
        log_folder: Folder that logs file assignments for a restart; None: they are not logged.
    """

    def __init__(
        self, *, steps: Callable[[], int], clocks: Callable[[], Clocks], log_folder: str | None = None
    ) -> None:
        self._filing = threading.Lock()  # guards the next two fields; may block on disk, which membership must not
        self._queues = JobQueues(None if log_folder is None else QueueLogs(log_folder))
        self._takers: set[int] = set()
        self._steps = steps
        self._clocks = clocks
        self._streams = NewsStreams()
        self._looked_at = -_LOOK_SECONDS
        self._looking = threading.Lock()
        """Held while the counters of the server are read and stored, so that newer values are never overwritten."""
        self._changed = threading.Condition()  # guards the fields below
        self._coordinator = Coordinator(secrets.randbits(63), time.monotonic())
        self._announced = self._coordinator.state(time.monotonic())
        self._has_news = False
        self._is_closed = False
        self._thread: PeriodicThread | None = None
        self._tell_takers()

    @property
    def state(self) -> JobState:
        """The current state of the job."""
        with self._changed:
            return self._coordinator.state(time.monotonic())

    def handler(self, credentials: ServerCredentials) -> Any:
        """Returns the service as a gRPC handler."""
        return make_handler(COORDINATOR, self, credentials, lasting={"Watch": self._watch})

    def dump(self) -> bytes:
        """Returns the state that outlives this process; restore it with clocks of the same time or later."""
        with self._changed:
            return self._coordinator.dump()

    def load(self, content: bytes) -> None:
        """Restores the state of a previous process."""
        with self._changed:
            self._coordinator.load(content)

    def close(self) -> None:
        """Disconnects all members. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.close()
        self._streams.close()
        with self._filing:
            self._queues.close()

    # Calls

    def Join(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Adds a member, or confirms one that rejoins."""
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
        """Renews a lease."""
        late = self._streams.heard(request.seat.token)
        with self._changed:
            now = time.monotonic()
            self._coordinator.renew(place_in(request.seat), request.seat.token, progress=request.progress, now=now)
            self._spread(now)
            if late:
                self._wake()
        return messages.StateResponse()

    def Leave(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Removes a member."""
        with self._changed:
            now = time.monotonic()
            self._coordinator.leave(place_in(request.seat), request.seat.token, now=now)
            self._spread(now)
        return parameter_server_pb2.Done()

    def Change(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Applies a change that one member requests for all."""
        kind = request.WhichOneof("change")
        if kind == "reset":
            self._require_seat(place_in(request.seat), request.seat.token)
            self._load_queues({})
        with self._looking:
            clocks = self._clocks() if kind in ("finish", "release") else {}
            steps = self._steps() if kind in ("finish", "release", "left", "restored_step") else None
            with self._changed:
                now = time.monotonic()
                _apply(request, self._coordinator, clocks, steps, now)
                return messages.StateResponse(state=self._spread(now))

    def Adopt(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Assigns the index of a lost worker to a worker that has finished its own input."""
        with self._changed:
            now = time.monotonic()
            worker = self._coordinator.adopt(place_in(request.seat), request.seat.token, now=now)
            return messages.AdoptResponse(worker=worker, state=self._spread(now))

    def SaveJob(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Returns the state of the job for a checkpoint."""
        with self._changed:
            now = time.monotonic()
            self._coordinator.require(place_in(request.seat), request.seat.token, now=now)
            # Finished workers first: they stay finished whatever happens later.
            saved = self._coordinator.state_dict()
        with self._filing:
            content = json.dumps({**saved, "queues": self._queues.state_dict()}, sort_keys=True)
        return messages.SavedJob(content=content.encode())

    def LoadJob(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Restores the state of the job from a checkpoint."""
        content = json.loads(request.content)
        self._require_seat(place_in(request.seat), request.seat.token)
        self._load_queues(content["queues"])
        with self._changed:
            now = time.monotonic()
            self._coordinator.restore(content, now)
            return messages.StateResponse(state=self._spread(now))

    # Calls about files

    def TakeFile(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Assigns a file to a worker."""
        self._require_seat(place_in(request.seat), request.seat.token)
        with self._filing:
            queue = self._queues.open(
                request.queue,
                digest=request.digest,
                num_look_ups=request.num_look_ups,
                seed=request.seed if request.HasField("seed") else None,
            )
            if request.only_look:
                queue.require_taken(request.worker, request.turn, request.epoch)
                return messages.TakeFileResponse()
            assigned = queue.take(request.worker, request.turn, request.epoch)
            self._tell_takers()
            if assigned is None:
                return messages.TakeFileResponse()
            if isinstance(assigned, LookUp):
                return messages.TakeFileResponse(look_up=assigned.number, nothing_found=assigned.number is None)
            place = "" if assigned.place is None else json.dumps(assigned.place)
            return messages.TakeFileResponse(path=assigned.path, place=place)

    def FoundFiles(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Adds the files that a worker has listed."""
        self._require_seat(place_in(request.seat), request.seat.token)
        with self._filing:
            self._queues.find(request.queue).found(request.look_up, request.files)
        return parameter_server_pb2.Done()

    def GiveBack(self, request: Any) -> Any:  # noqa: N802 - as on the wire
        """Returns the unread files of a worker to the queue, for the other workers."""
        self._require_seat(place_in(request.seat), request.seat.token)
        progress = None
        if request.HasField("progress"):
            epoch, turns, places = json.loads(request.progress)
            progress = WorkerProgress(epoch, turns, dict(places))
        with self._filing:
            files = self._queues.find(request.queue).give_back(request.worker, progress)
            self._tell_takers()
        return messages.GiveBackResponse(files=files)

    # Implementation

    def _require_seat(self, place: Place, token: int) -> None:
        with self._changed:
            self._coordinator.require(place, token, now=time.monotonic())

    def _load_queues(self, state: dict[str, Any]) -> None:
        with self._filing:
            self._queues.load_state_dict(state)
            self._tell_takers()

    def _tell_takers(self) -> None:
        takers = self._queues.workers
        if takers != self._takers:
            self._takers = takers
            self._take_note(takers)

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
            self._unwatch(stream)  # the client has disconnected already

    def _unwatch(self, stream: NewsStream) -> None:
        if self._streams.remove(stream):
            with self._changed:
                now = time.monotonic()
                self._coordinator.disconnect(stream.token, now=now)
                self._wake()  # the lease of a disconnected member expires sooner

    def _spread(self, now: float) -> Any:
        """Returns the state after an event for the answer, and wakes the notifier. REQUIRES: the condition is held."""
        state = self._coordinator.state(now)
        if state.version != self._announced.version:
            self._wake()
        return state_message(state)

    def _wake(self) -> None:
        self._has_news = True
        self._changed.notify_all()

    def _begin(self) -> None:
        """Starts the thread with the first member. REQUIRES: the condition is held."""
        if self._thread is None and not self._is_closed:
            again = Backoff(_AGAIN_SECONDS, _AGAIN_SECONDS)
            self._thread = PeriodicThread(self._tell, every=0.0, name="job-coordinator", backoff=again)
            self._thread.start()

    def _tell(self) -> End | None:
        state = self._next_state()
        if state is None:
            return END
        self._streams.send(state)
        return None

    def _next_state(self) -> JobState | None:
        """Waits for the next state to send; None: the server ends."""
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
            if state.version == self._announced.version and not self._has_news:
                self._changed.wait_for(lambda: self._has_news or self._is_closed, self._pause(now))
                state = self._coordinator.state(time.monotonic())
            self._has_news = False
            self._announced = state
            return None if self._is_closed else state

    def _pause(self, now: float) -> float | None:
        """Returns the time until the next lease event or poll; None: until a change."""
        end = self._coordinator.next_end(now)
        if end is None:
            return _LOOK_SECONDS if len(self._streams) else None
        return max(0.0, min(_LOOK_SECONDS, end - now))


_AS_LOADED = -1
"""In place of a step: use the step of the loaded job state."""


def _apply(request: Any, job: Coordinator, clocks: Clocks, steps: int | None, now: float) -> None:
    """Applies a member's change to the coordinator."""
    who = place_in(request.seat), request.seat.token
    if steps is not None:
        job.note_steps(steps)  # members that see a finished worker see all its steps
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
            *who, worker=lost.worker, server=lost.server, batches=range(lost.first, lost.first + lost.updates), now=now
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


_UNHEARD_BYTES = 32 << 10
"""Maximum number of bytes sent to a member since its last heartbeat. A send beyond the buffer of its connection would
block: a suspended member would hold up the others. A connection always buffers 64 KiB."""


@dataclass(eq=False, slots=True)
class NewsStream:
    """Stream to one member. The lock of `NewsStreams` guards its counters."""

    token: int
    send: Send
    version: int = -1
    steps: int = -1
    unheard_bytes: int = 0
    is_over: bool = field(default=False)


class NewsStreams:
    """All streams of a coordinator. Thread-safe, but only one thread at a time may call `send`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the list and the counters of its streams
        self._streams: list[NewsStream] = []

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: NewsStream) -> None:
        """Adds a stream; the next `send` sends it the full state."""
        with self._lock:
            self._streams.append(stream)

    def remove(self, stream: NewsStream) -> bool:
        """Removes a stream that has ended; returns False if it was removed before."""
        with self._lock:
            stream.is_over = True
            if stream not in self._streams:
                return False
            self._streams.remove(stream)
            return True

    def heard(self, token: int) -> bool:
        """Records a heartbeat of a member; returns whether news for it was withheld."""
        with self._lock:
            own = [stream for stream in self._streams if stream.token == token]
            late = any(stream.unheard_bytes >= _UNHEARD_BYTES for stream in own)
            for stream in own:
                stream.unheard_bytes = 0
            return late

    def send(self, state: JobState) -> None:
        """Sends each member the changes that it has not received yet."""
        everything = messages.News(state=state_message(state), steps=state.steps)
        figures = messages.News(steps=state.steps)
        for stream, news in self._due(state, everything, figures):
            stream.send(news)

    def close(self) -> None:
        """Ends all streams."""
        with self._lock:
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.send(None)

    def _due(
        self, state: JobState, everything: messages.News, figures: messages.News
    ) -> list[tuple[NewsStream, messages.News]]:
        due = []
        with self._lock:
            for stream in self._streams:
                if stream.unheard_bytes >= _UNHEARD_BYTES:
                    continue
                if stream.version != state.version:
                    due.append((stream, everything))
                elif stream.steps != state.steps:
                    due.append((stream, figures))
                else:
                    continue
                stream.version, stream.steps = state.version, state.steps
                stream.unheard_bytes += due[-1][1].ByteSize()
        return due
