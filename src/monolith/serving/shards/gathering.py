"""One request to each of several shards at once, answered by whichever replica is first, by a deadline."""

from __future__ import annotations

import queue
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
    from monolith.serving.shards.replica_race import ReplicaRace

__all__ = ["Gathering", "ShardQuestion"]

_FINAL = (InvalidArgumentError, UnauthenticatedError, PermissionDeniedError)
"""What another replica would say, too."""
_SHORTEST_SECONDS = 0.001

T = TypeVar("T")


class ShardQuestion(NamedTuple):
    """What one shard is asked."""

    shard: str
    """Its name, for messages."""
    request: messages.PredictRequest
    race: ReplicaRace


class Gathering(Generic[T]):
    """Belongs to one thread, and is used once.

    Args:
        channels: Of the replicas.
        questions: One for each shard.
        seconds: How long the answers are waited for.
        read: Makes something of the answer of a question; an `OpError` that it raises counts as one of the replica.
        on_failed: Told the address of each replica that failed, or did not answer for so long that another is asked.
        clock: Measures the time.
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
        """Question -> its answer, and what `read` made of it."""
        self.lost: dict[int, OpError] = {}
        """Question -> why no replica answered it."""

    def run(self) -> None:
        """Asks, and returns when every question is answered or lost.

        Raises:
            InvalidArgumentError, UnauthenticatedError, PermissionDeniedError: a shard refuses the question.
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
                    self._on_failed(slow)  # or every request would wait for it as long as this one
                    self._ask(number, address)

    def _finish(self, number: int, call: ShardCall) -> None:
        if number not in self._open:
            return  # another replica was first
        try:
            answer = call.result()
        except _FINAL:
            raise
        except OpError as error:
            self._fail(number, call, error)
            return
        try:
            self.answers[number] = answer, self._read(number, answer)
        except OpError as error:
            self._fail(number, call, error)
            return
        self._open.discard(number)

    def _fail(self, number: int, call: ShardCall, error: OpError) -> None:
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
        """A call that has ended; None: it is time to ask another replica, or over."""
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
