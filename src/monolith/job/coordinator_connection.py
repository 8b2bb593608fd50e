"""Connection of a job member to the coordinator: joins, renews the lease, and receives state changes.

The home server may restart, at any address: the member then joins again with its index and its last reported changes,
and continues.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from monolith.background import END, Backoff, End, PeriodicThread
from monolith.clock import SystemClock, wait_until
from monolith.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from monolith.job.state import JobState
from monolith.job.wire import state_in
from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.rpc import ControlCall, ControlChannel

_log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 3
_ASK_AGAIN_SECONDS = 0.1
"""Retry interval for an index in use, and for a lost connection."""
_SIGNS_OF_LIFE = 2
"""Renewals that prove that the holder of an index is alive: one may have been in flight when the holder died."""
_ANNOUNCE_SECONDS = 5.0
_GOODBYE_SECONDS = 2.0
_CLOCK = SystemClock()


class ServerChannels(Protocol):
    """Connections to the servers of a job, which `PsCluster` provides."""

    timeout_seconds: float

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers."""

    def channel(self, index: int) -> ControlChannel:
        """Returns the channel to a server."""

    def on_move(self, callback: Callable[[int], None]) -> None:
        """Registers a method to call with the index of each server that moves."""


class CoordinatorConnection:
    """Connection of one member. Thread-safe; a condition guards the last received state.

    Args:
        cluster: The servers; the first one is the home server.
        join: Join request: role, index, number of workers, address, lease.

    Raises:
        AlreadyExistsError: a live process has the index.
        UnavailableError: the home server does not answer.
    """

    def __init__(self, cluster: ServerChannels, join: messages.JoinRequest) -> None:
        self._cluster = cluster
        self._title = f"{join.seat.role} {join.seat.index}"
        self._join_request = join
        self._join_request.seat.token = secrets.randbits(63) | 1
        self.progress = 0
        """Global step sent with the next renewal."""
        self._speaking = threading.RLock()  # guards the join request, which a member sends again when it rejoins
        self._changed = threading.Condition()  # guards the fields below
        self._state = JobState()
        self._is_connected = False
        self._heard_at = 0.0
        self._lost: OpError | None = None
        self._is_closed = False
        self._stream: Any = None
        self._calls: set[ControlCall] = set()
        self._on_barrier: list[Callable[[], None]] = []
        self._take_place()
        cluster.on_move(self._moved)
        self._threads = [
            PeriodicThread(call, every=0.0, name=name, backoff=Backoff(_ASK_AGAIN_SECONDS, _ASK_AGAIN_SECONDS))
            for name, call in (("job-news", self._listen), ("job-lease", self._keep_lease))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def seat(self) -> messages.Seat:
        """Role, index and token of this member, for requests."""
        return self._join_request.seat

    @property
    def state(self) -> JobState:
        """The last received state."""
        with self._changed:
            return self._state

    @property
    def is_connected(self) -> bool:
        """Whether the state stream is open and the lease is renewed."""
        with self._changed:
            limit = self._heard_at + self._join_request.lease_seconds
            return self._is_connected and self._lost is None and time.monotonic() < limit

    def require(self) -> None:
        """Raises if this member has lost its index.

        Raises:
            AbortedError: another process has the index.
            FailedPreconditionError: this connection was closed.
        """
        with self._changed:
            if self._lost is not None:
                raise type(self._lost)(self._lost.message)
            if self._is_closed:
                raise FailedPreconditionError(f"job: {self._title} has left it; make another JobClient")

    def on_barrier(self, callback: Callable[[], None]) -> None:
        """Registers a callback for when the barrier is placed or removed; it may read the state."""
        with self._changed:
            self._on_barrier.append(callback)

    def wait_for(
        self,
        predicate: Callable[[JobState], bool],
        *,
        timeout_seconds: float | None,
        give_up: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until the predicate holds, waking with every change; False: the time is over, or `give_up` was true.

        Raises:
            AbortedError: another process has this index.
        """

        def reached() -> bool:
            if predicate(self._state):
                return True
            self.require()
            return False

        return wait_until(
            reached, changed=self._changed, clock=_CLOCK, timeout_seconds=timeout_seconds, give_up=give_up
        )

    def ask(self, method: str, request: Any, *, timeout_seconds: float | None = None) -> Any:
        """Calls the coordinator and returns its answer; stores a state in the answer.

        Raises:
            AbortedError: another process has this index.
            UnavailableError, DeadlineExceededError: the home server does not answer.
        """
        try:
            return self._ask_known(method, request, timeout_seconds)
        except NotFoundError:  # the coordinator restarted, and this call came before the stream ended
            self._announce()
            return self._ask_known(method, request, timeout_seconds)

    def _ask_known(self, method: str, request: Any, timeout_seconds: float | None = None) -> Any:
        """Calls a coordinator; raises NotFoundError if it does not have this member."""
        self.require()
        request.seat.CopyFrom(self.seat)
        try:
            answer = self._ask_home(method, request, timeout_seconds)
        except AbortedError as error:
            self._lose(error)
            raise
        if "state" in answer.DESCRIPTOR.fields_by_name and answer.HasField("state"):
            self._hear(state_in(answer.state))
        return answer

    def send_change(self, request: messages.ChangeRequest, **fields: Any) -> None:
        """Sends a change, and repeats it whenever this member rejoins.

        Args:
            request: The change.
            fields: Fields of `JoinRequest` to set for it; None clears a field.
        """
        with self._speaking:
            self.require()
            before = messages.JoinRequest()
            before.CopyFrom(self._join_request)
            for name, value in fields.items():
                if value is None:
                    self._join_request.ClearField(name)
                else:
                    setattr(self._join_request, name, value)
            try:
                self._ask_known("Change", request)
            except NotFoundError:
                self._announce()  # carries the change: sent twice it could be rejected, as a second barrier is
            except (CancelledError, DeadlineExceededError, UnavailableError):
                raise  # a recovered home server receives the change with the join request
            except OpError:
                self._join_request.CopyFrom(before)
                raise

    def close(self) -> None:
        """Leaves the job. Idempotent."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            in_flight = [*self._calls, *([] if self._stream is None else [self._stream])]
            self._changed.notify_all()
        for call in in_flight:
            call.cancel()
        with suppress(OpError):
            request = messages.SeatRequest(seat=self.seat)
            channel = self._cluster.channel(0)
            channel.begin("Leave", request, _GOODBYE_SECONDS, wait_for_ready=False).result()
        for thread in self._threads:
            thread.close()

    # Joining

    def _take_place(self) -> None:
        """Joins; waits for the lease of a process that no longer renews it to expire."""
        first: messages.JoinResponse | None = None
        while (answer := self._join()).taken:
            if first is None or answer.owner != first.owner:
                first = answer
            elif answer.renewals >= first.renewals + _SIGNS_OF_LIFE:
                raise AlreadyExistsError(
                    f"job: {answer.owner}, which renewed its lease {answer.seconds_since_renewal:.1f} s ago; start each"
                    " process with an index of its own, or end that one"
                )
            time.sleep(min(_ASK_AGAIN_SECONDS, answer.seconds_left + 0.001))

    def _join(self, timeout_seconds: float | None = None) -> messages.JoinResponse:
        answer: messages.JoinResponse = self._ask_home("Join", self._join_request, timeout_seconds)
        if not answer.taken:
            self._join_request.incarnation = answer.incarnation
            self._hear(state_in(answer.state), is_new=True)
        return answer

    def _announce(self) -> None:
        """Joins again, at a home server that may have restarted."""
        try:
            with self._speaking:
                self._join(_ANNOUNCE_SECONDS)
        except AbortedError as error:
            self._lose(error)
            raise

    def _ask_home(self, method: str, request: Any, timeout_seconds: float | None) -> Any:
        limit = self._cluster.timeout_seconds if timeout_seconds is None else timeout_seconds
        while True:
            channel = self._cluster.channel(0)
            try:
                return self._ask_over(channel, method, request, limit)
            except (CancelledError, FailedPreconditionError, UnavailableError):
                if self._is_closed or self._cluster.channel(0) is channel:  # otherwise the home server moved: retry
                    raise

    def _ask_over(self, channel: ControlChannel, method: str, request: Any, limit: float) -> Any:
        call = channel.begin(method, request, limit)
        with self._changed:
            self._calls.add(call)
            is_closed = self._is_closed
        try:
            if is_closed:
                call.cancel()
            return call.result()
        finally:
            with self._changed:
                self._calls.discard(call)

    # Threads

    def _listen(self) -> End | None:
        channel = self._cluster.channel(0)
        try:
            stream = channel.open_stream("Watch", messages.SeatRequest(seat=self.seat))
            with self._changed:
                self._stream = stream
                if self._is_closed:
                    stream.cancel()
            try:
                for news in channel.answers(stream, "Watch"):
                    self._take_news(news)
            finally:
                stream.cancel()  # or the next one would be this member's second
        except NotFoundError:
            self._begin_anew()
        except AbortedError as error:
            self._lose(error)
        except OpError as error:
            self._disconnect(str(error))
            self._begin_anew()
        with self._changed:
            if not self._is_closed:
                self._changed.wait(_ASK_AGAIN_SECONDS)
        return END if self._is_over() else None

    def _begin_anew(self) -> None:
        if not self._is_over():
            with suppress(OpError):
                self._announce()

    def _keep_lease(self) -> End | None:
        every = self._join_request.lease_seconds / _RENEWALS_PER_LEASE
        begun = time.monotonic()
        try:
            request = messages.RenewRequest(seat=self.seat, progress=self.progress)
            self._ask_home("Renew", request, self._join_request.lease_seconds)
            with self._changed:
                self._heard_at = begun
        except NotFoundError:
            self._begin_anew()
        except AbortedError as error:
            self._lose(error)
        except OpError as error:
            self._disconnect(str(error))
        with self._changed:
            self._changed.wait_for(self._is_over, begun + every - time.monotonic())
        return END if self._is_over() else None

    def _take_news(self, news: messages.News) -> None:
        with self._changed:
            if not self._is_connected:
                _log.info("job: %s is connected to its coordinator at %s", self._title, self._cluster.addresses[0])
            self._is_connected = True
            self._heard_at = time.monotonic()
            self._changed.notify_all()
        if news.HasField("state"):
            self._hear(state_in(news.state))
        else:
            self._hear_steps(news.steps)

    def _hear(self, state: JobState, *, is_new: bool = False) -> None:
        with self._changed:
            before = self._state
            if state.incarnation == before.incarnation:
                if (state.version, state.steps) < (before.version, before.steps):
                    return  # an answer overtaken by a newer state
            elif not is_new:
                return  # from a home server that has ended
            self._state = state
            self._heard_at = max(self._heard_at, time.monotonic()) if is_new else self._heard_at
            own = state.member(self.seat.role, self.seat.index)
            if own is not None and own.incarnation > self._join_request.incarnation:
                self._lost = self._lost or AbortedError(
                    f"job: {self._title} is the process at {own.address or 'an unknown address'} by now, as incarnation"
                    f" {own.incarnation}, and this one was {self._join_request.incarnation}; start it again"
                )
            self._changed.notify_all()
            callbacks = list(self._on_barrier) if state.barrier_placed != before.barrier_placed else []
        for callback in callbacks:  # outside the lock: callbacks may wait for a thread that reads the state
            callback()

    def _hear_steps(self, steps: int) -> None:
        with self._changed:
            if steps != self._state.steps:
                self._state = replace(self._state, steps=steps)
                self._changed.notify_all()

    def _disconnect(self, why: str) -> None:
        with self._changed:
            if self._is_connected and not self._is_closed:
                _log.warning("job: %s lost the connection to its coordinator: %s", self._title, why)
            self._is_connected = False
            self._changed.notify_all()

    def _lose(self, error: OpError) -> None:
        with self._changed:
            self._lost = self._lost or error
            self._is_connected = False
            self._changed.notify_all()

    def _is_over(self) -> bool:
        with self._changed:
            return self._is_closed or self._lost is not None

    def _moved(self, index: int) -> None:
        if index == 0 and (stream := self._stream) is not None:
            stream.cancel()
