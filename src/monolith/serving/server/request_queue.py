"""Decides which requests are admitted and which are batched, from their expected wait.

A pure state machine: events with their times in, decisions out. Threads, models and clocks are in `model_threads.py`.

A request is rejected immediately if those before it would take longer than `RequestQueueConfig.max_wait_seconds`, or
than its own deadline: a request that expires in the queue costs twice. The cost of calls is estimated from past calls,
and the additional delay between calls from the waits of past requests. Small requests with the same model, signature
and kinds of columns are batched into one call. They wait for others at most `RequestQueueConfig.batch_delay_seconds`,
by default not at all: requests that arrive while the model is busy are batched.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.config import Config, config, require_positive
from monolith.errors import OpError, ResourceExhaustedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Hashable


_LEAST_RETRY_SECONDS = 0.001


class OverloadedError(ResourceExhaustedError):
    """The server is overloaded; retry later, or at another server."""

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """Time after which to retry."""


@config
class RequestQueueConfig(Config):
    """Limits of the queue."""

    threads: int = 1
    """Number of concurrent model calls; each uses one thread, including torch."""
    max_wait_seconds: float = 0.1
    """Maximum expected wait; a request that would wait longer is rejected."""
    max_waiting: int = 1024
    """Maximum number of queued requests, however fast models are."""
    batch_examples: int = 256
    """Maximum number of examples of a batch; a larger request is not batched. 1: no batching."""
    batch_delay_seconds: float = 0.0
    """How long a request waits for others to form a batch, when a thread is free."""

    def __post_init__(self) -> None:
        require_positive(self, "threads", "max_wait_seconds", "max_waiting", "batch_examples")
        if not 0 <= self.batch_delay_seconds <= self.max_wait_seconds:
            raise ValueError(
                f"RequestQueueConfig: batch_delay_seconds must be from 0 to max_wait_seconds = {self.max_wait_seconds},"
                f" got {self.batch_delay_seconds}"
            )


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the queue."""

    likeness: Hashable
    """Batching key: requests with the same one may be batched; None: not batched."""
    cost: Hashable
    """Key of the cost estimate: model and signature."""
    rows: int
    deadline: float
    """Deadline on the clock of the queue."""
    work: Any
    """Data of the caller."""
    since: float = field(default=0.0, init=False)
    expected: float = field(default=0.0, init=False)
    """Estimated seconds of the requests before it when it arrived."""


class Taken(NamedTuple):
    """Decision for a free thread."""

    batch: list[Ticket]
    """Requests to answer with one call; empty: nothing is due."""
    expired: list[Ticket]
    """Expired requests, removed from the queue."""
    wait_seconds: float | None
    """When to call `take` again if no request arrives; None: only when one arrives."""


class RequestQueue:
    """The queue of a server. Not thread-safe: `model_threads.py` has the lock."""

    def __init__(self, rules: RequestQueueConfig) -> None:
        self._rules = rules
        self._lines: dict[Hashable, deque[Ticket]] = {}
        """Batching key -> requests in order of arrival; never empty."""
        self._costs: dict[Hashable, CostModel] = {}
        self._slip = WaitSlip()
        self._waiting: dict[Hashable, list[int]] = {}
        """Cost key -> [requests, examples] in the queue."""
        self._running: dict[int, tuple[float, float]] = {}
        """Number of a call -> its start, and its estimated duration."""
        self._num_calls = 0
        self.num_waiting = 0
        """Number of requests in the queue."""
        self._first_deadline = math.inf
        """Lower bound of the deadlines of queued requests."""
        self.is_draining = False
        """Whether new requests are rejected, and no request waits for a batch."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued and no call is running."""
        return self.num_waiting == 0 and not self._running

    def expected_wait(self, now: float) -> float:
        """Estimates the wait of a request that arrives now, in seconds."""
        return self._ahead(now) * self._slip.factor

    def refusal(self, now: float, deadline: float | None = None) -> OpError | None:
        """Returns why a request that arrives now would be rejected; None if it would be admitted."""
        if self.is_draining:
            return UnavailableError("the server is about to end; ask another one")
        wait = self.expected_wait(now)
        if wait == 0.0 and self.num_waiting < self._rules.max_waiting:
            return None
        retry = max(wait, _LEAST_RETRY_SECONDS)
        if self.num_waiting >= self._rules.max_waiting:
            text = f"the server is overloaded: {self.num_waiting} requests wait, and more may not; try again later"
            return OverloadedError(text, retry_after_seconds=retry)
        if wait > self._rules.max_wait_seconds:
            text = (
                f"the server is overloaded: a request would wait {wait * 1e3:.0f} ms, and may"
                f" {self._rules.max_wait_seconds * 1e3:.0f} ms; try again later"
            )
            return OverloadedError(text, retry_after_seconds=retry)
        if deadline is not None and now + wait > deadline:
            text = (
                f"the server is overloaded: a request would wait {wait * 1e3:.0f} ms, and this one expires in"
                f" {max(0.0, deadline - now) * 1e3:.0f} ms"
            )
            return OverloadedError(text, retry_after_seconds=retry)
        return None

    def offer(self, ticket: Ticket, now: float) -> OpError | None:
        """Admits a request, or returns why it is rejected."""
        refused = self.refusal(now, ticket.deadline)
        if refused is not None:
            return refused
        if ticket.likeness is None or ticket.rows >= self._rules.batch_examples:
            ticket.likeness = object()
        ticket.since = now
        ticket.expected = self._ahead(now)
        self._lines.setdefault(ticket.likeness, deque()).append(ticket)
        self._costs.setdefault(ticket.cost, CostModel())
        waiting = self._waiting.setdefault(ticket.cost, [0, 0])
        waiting[0] += 1
        waiting[1] += ticket.rows
        self.num_waiting += 1
        self._first_deadline = min(self._first_deadline, ticket.deadline)
        return None

    def take(self, now: float) -> Taken:
        """Returns the work for a free thread."""
        expired = self._take_expired(now) if now >= self._first_deadline else []
        if not self._lines:
            return Taken([], expired, None)
        lines = self._lines.values()
        line = next(iter(lines)) if len(lines) == 1 else min(lines, key=lambda line: line[0].since)
        batch, rows = self._next_batch(line)
        is_full = len(batch) < len(line) or rows >= self._rules.batch_examples
        due = line[0].since + self._rules.batch_delay_seconds
        if not is_full and now < due and not self.is_draining:
            return Taken([], expired, min(due, *(ticket.deadline for ticket in batch)) - now)
        for ticket in batch:
            self._leave(line.popleft())
            self._slip.add(ticket.expected, now - ticket.since)
        if not line:
            del self._lines[batch[0].likeness]
        return Taken(batch, expired, None)

    def begin(self, batch: list[Ticket], now: float) -> int:
        """Records the start of a call; returns its number."""
        rows = sum(ticket.rows for ticket in batch)
        self._num_calls += 1
        self._running[self._num_calls] = (now, self._costs[batch[0].cost].seconds(rows))
        return self._num_calls

    def done(self, call: int, batch: list[Ticket], now: float, *, counts: bool = True) -> None:
        """Records the end of a call.

        With `counts`, its duration is used for the cost estimate; not for a failure.
        """
        begin, _ = self._running.pop(call)
        if counts:
            self._costs[batch[0].cost].add(max(1, sum(ticket.rows for ticket in batch)), max(0.0, now - begin))

    def _ahead(self, now: float) -> float:
        """Estimates the seconds of the calls before a request that arrives now."""
        if self.num_waiting == 0 and len(self._running) < self._rules.threads:
            return 0.0
        ahead = sum(max(0.0, begin + seconds - now) for begin, seconds in self._running.values())
        for cost, (requests, rows) in self._waiting.items():
            calls = min(requests, -(-rows // self._rules.batch_examples))
            ahead += self._costs[cost].seconds(rows, calls)
        return ahead / self._rules.threads

    def _next_batch(self, line: deque[Ticket]) -> tuple[list[Ticket], int]:
        batch: list[Ticket] = []
        rows = 0
        for ticket in line:
            if batch and rows + ticket.rows > self._rules.batch_examples:
                break
            batch.append(ticket)
            rows += ticket.rows
        return batch, rows

    def _take_expired(self, now: float) -> list[Ticket]:
        expired = [ticket for line in self._lines.values() for ticket in line if ticket.deadline <= now]
        for ticket in expired:
            line = self._lines[ticket.likeness]
            line.remove(ticket)
            self._leave(ticket)
            if not line:
                del self._lines[ticket.likeness]
        self._first_deadline = min(
            (ticket.deadline for line in self._lines.values() for ticket in line), default=math.inf
        )
        return expired

    def _leave(self, ticket: Ticket) -> None:
        waiting = self._waiting[ticket.cost]
        waiting[0] -= 1
        waiting[1] -= ticket.rows
        self.num_waiting -= 1


_FORGETS = 0.95
"""Decay of earlier measurements with each new one: about the last twenty count."""
_SPREAD = 1e-3
"""Minimum variance of the sizes, relative to their mean square, for which slope and constant can be separated."""
_TELLING_SECONDS = 1e-3
"""Minimum expected wait for which slip is measured."""
_DEVIATIONS = 2.0
_MOST_SLIP = 4.0
"""Bound of the slip: a process that was suspended must not reject everything afterwards."""


class CostModel:
    """Seconds of a call as a constant plus a cost per example, by least squares. Not thread-safe."""

    def __init__(self) -> None:
        self._count = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._rows_squared = 0.0
        self._product = 0.0
        self._base = 0.0
        self._slope = 0.0
        self._is_fitted = True
        """Whether base and slope are up to date; they are fitted lazily."""

    def add(self, rows: int, seconds: float) -> None:
        """Adds the measurement of one call."""
        self._count = self._count * _FORGETS + 1.0
        self._rows = self._rows * _FORGETS + rows
        self._seconds = self._seconds * _FORGETS + seconds
        self._rows_squared = self._rows_squared * _FORGETS + rows * rows
        self._product = self._product * _FORGETS + rows * seconds
        self._is_fitted = False

    def seconds(self, rows: int, calls: int = 1) -> float:
        """Estimates the seconds for `rows` examples in `calls` calls; 0 before the first measurement."""
        if not self._is_fitted:
            self._fit()
        return self._base * calls + self._slope * rows

    def _fit(self) -> None:
        self._is_fitted = True
        mean_rows, mean_seconds = self._rows / self._count, self._seconds / self._count
        mean_square = self._rows_squared / self._count
        variance = mean_square - mean_rows * mean_rows
        if variance <= _SPREAD * mean_square:  # one size only: constant and slope cannot be separated
            self._base, self._slope = 0.0, mean_seconds / mean_rows
            return
        slope = (self._product / self._count - mean_rows * mean_seconds) / variance
        self._slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        self._base = mean_seconds - self._slope * mean_rows


class WaitSlip:
    """Ratio of the actual wait of requests to the estimated time of the calls before them.

    Calls do not follow each other immediately: requests are decoded, rejected and answered in between, and the process
    may be preempted. Not thread-safe.
    """

    def __init__(self) -> None:
        self._mean = 1.0
        self._deviation = 0.0

    def add(self, expected: float, waited: float) -> None:
        """Adds the measurement of one request, in seconds."""
        if expected < _TELLING_SECONDS:
            return  # small waits are dominated by other effects
        slip = min(waited / expected, _MOST_SLIP)
        self._deviation += (1 - _FORGETS) * (abs(slip - self._mean) - self._deviation)
        self._mean += (1 - _FORGETS) * (slip - self._mean)

    @property
    def factor(self) -> float:
        """Factor for an expected wait that nearly no request exceeds; at least 1."""
        return min(max(1.0, self._mean + _DEVIATIONS * self._deviation), _MOST_SLIP)
