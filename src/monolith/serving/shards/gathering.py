"""Sends one request to each of several shards concurrently, with hedging among replicas and a deadline.

`HedgedRequest` decides which replicas of one shard are called, and when: it has no clock and no connection.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from monolith.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.clock import Clock
    from monolith.serving.protos import prediction_service_pb2 as messages
    from monolith.serving.shards.channels import ShardAnswer, ShardCall, ShardChannels

_FINAL = (InvalidArgumentError, UnauthenticatedError, PermissionDeniedError)
"""Errors that another replica would return as well."""
_SHORTEST_SECONDS = 0.001

T = TypeVar("T")


class ShardQuestion(NamedTuple):
    """Request to one shard."""

    shard: str
    """Name of the shard, for messages."""
    request: messages.PredictRequest
    race: HedgedRequest


class ShardFanOut(Generic[T]):
    """Concurrent requests to several shards. Not thread-safe; for a single use.

    `read` parses the answer to a request; an `InternalError` that it raises counts as an error of the replica.
    `on_failed` is called with the address of each replica that failed, or was so slow that the request was hedged.
    """

    def __init__(
        self,
        channels: ShardChannels,
        questions: Sequence[ShardQuestion],
        *,
        seconds: float,
        read: Callable[[int, ShardAnswer], T],
        on_failed: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._channels = channels
        self._questions = questions
        self._read = read
        self._on_failed = on_failed
        self._clock = clock
        self._seconds = seconds
        self._deadline = clock.monotonic() + seconds
        self._done: queue.SimpleQueue[tuple[int, ShardCall]] = queue.SimpleQueue()
        self._calls: list[ShardCall] = []
        self._open = set(range(len(questions)))
        self.answers: dict[int, tuple[ShardAnswer, T]] = {}
        """Index of a request -> its answer, and the result of `read`."""
        self.lost: dict[int, OpError] = {}
        """Index of a request -> why no replica answered it."""

    def run(self) -> None:
        """Sends all requests, and returns when each is answered or lost.

        Raises:
            InvalidArgumentError, UnauthenticatedError, PermissionDeniedError: a shard rejects the request.
        """
        try:
            for number, question in enumerate(self._questions):
                self._ask(number, question.race.begin(self._clock.monotonic()))
            while self._open:
                self._take(self._next_event())
        finally:
            for call in self._calls:
                call.cancel()

    def _take(self, event: tuple[int, ShardCall] | None) -> None:
        now = self._clock.monotonic()
        if event is not None:
            self._finish(*event)
        elif now >= self._deadline:
            for number in sorted(self._open):
                self._lose(number, self._too_late(number))
        else:
            for number in sorted(self._open):
                race = self._questions[number].race
                slow, address = race.latest, race.hedge(now)
                if address is not None:
                    self._on_failed(slow)  # else every request would wait for it this long
                    self._ask(number, address)

    def _finish(self, number: int, call: ShardCall) -> None:
        if number not in self._open:
            return  # another replica was first
        try:
            answer = call.result()
            self.answers[number] = answer, self._read(number, answer)
            self._open.discard(number)
        except _FINAL:
            raise
        except OpError as error:
            self._on_failed(call.address)
            self._ask(number, self._questions[number].race.failed(error, self._clock.monotonic()))

    def _ask(self, number: int, address: str | None) -> None:
        race = self._questions[number].race
        if address is not None:
            left = max(_SHORTEST_SECONDS, self._deadline - self._clock.monotonic())
            call = self._channels.predict(address, self._questions[number].request, left)
            self._calls.append(call)
            call.on_done(lambda: self._done.put((number, call)))
        elif race.is_lost:
            unknown = UnavailableError(f"{self._questions[number].shard}: no replica of it is known")
            self._lose(number, race.errors[-1] if race.errors else unknown)

    def _lose(self, number: int, error: OpError) -> None:
        self.lost[number] = error
        self._open.discard(number)

    def _next_event(self) -> tuple[int, ShardCall] | None:
        """Returns a call that has ended; None if it is time to hedge, or the deadline has passed."""
        hedges = [self._questions[number].race.next_hedge for number in self._open]
        until = min([self._deadline, *(hedge for hedge in hedges if hedge is not None)])
        try:
            return self._done.get(timeout=max(0.0, until - self._clock.monotonic()))
        except queue.Empty:
            return None

    def _too_late(self, number: int) -> OpError:
        question = self._questions[number]
        return DeadlineExceededError(
            f"{question.shard}: none of its {len(question.race.replicas)} replicas answered within"
            f" {1000 * self._seconds:g} ms"
        )


@dataclass(slots=True)
class HedgedRequest:
    """Hedged request to one shard: calls one replica, and another one if it fails or is slow.

    Each is called at most once, in the order given.
    """

    replicas: Sequence[str]
    hedge_seconds: float
    """Delay after which another replica is called in addition."""
    next_hedge: float | None = None
    """Time at which `hedge` should be called; None: never."""
    errors: list[OpError] = field(default_factory=list)
    """Errors of the failed replicas, in order."""
    _num_called: int = 0
    _under_way: int = 0

    def failed(self, error: OpError, now: float) -> str | None:
        """Records a failure; returns the replica to call instead, or None if there is none left."""
        self.errors.append(error)
        self._under_way -= 1
        return self.begin(now)

    def hedge(self, now: float) -> str | None:
        """Returns the replica to call in addition to those in flight; None if too early, or none is left."""
        if self.next_hedge is None or now < self.next_hedge:
            return None
        return self.begin(now)

    @property
    def latest(self) -> str:
        """The replica called last. REQUIRES: one was called."""
        return self.replicas[self._num_called - 1]

    @property
    def is_lost(self) -> bool:
        """Whether no replica is left that could answer."""
        return self._under_way == 0 and self._num_called == len(self.replicas)

    def begin(self, now: float) -> str | None:
        """Returns the replica to call next; None if there is none left."""
        if self._num_called == len(self.replicas):
            self.next_hedge = None
            return None
        replica = self.replicas[self._num_called]
        self._num_called += 1
        self._under_way += 1
        self.next_hedge = now + self.hedge_seconds if self._num_called < len(self.replicas) else None
        return replica
