"""The threads that call the models, separate from those of the front ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from monolith.background import END, End, PeriodicThread
from monolith.clock import FOREVER_SECONDS, Clock, SystemClock
from monolith.errors import DeadlineExceededError, InternalError, InvalidArgumentError, OpError, UnavailableError
from monolith.serving.request import Column, TypedColumns, length_of
from monolith.serving.server.request_queue import RequestQueue, RequestQueueConfig, Ticket
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from monolith.serving.served_model import ModelVersion, ServedModel
    from monolith.serving.server.metrics import ServingMetrics
    from monolith.serving.server.registry import RegisteredModel


class Answer(NamedTuple):
    """Answer to a request."""

    outputs: dict[str, Tensor]
    version: ModelVersion


@dataclass(slots=True, eq=False)
class Job:
    """A validated request."""

    entry: RegisteredModel
    """Held until the job is done."""
    signature: str
    columns: TypedColumns
    deadline: float
    """Deadline on the monotonic clock."""
    done: Callable[[Answer | BaseException], None]
    """Called once, by a model thread; must not block."""


class ModelThreads:
    """Pool of threads that call models, one call per thread at a time. Any thread may `submit`."""

    def __init__(self, rules: RequestQueueConfig, *, metrics: ServingMetrics, clock: Clock | None = None) -> None:
        self._queue = RequestQueue(rules)
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._is_ending = False
        self._threads = [PeriodicThread(self._work, every=0.0, name=f"model-{index}") for index in range(rules.threads)]
        for thread in self._threads:
            thread.start()

    def require_room(self, deadline: float | None = None) -> None:
        """Rejects a request before it is decoded, if it would be rejected afterwards."""
        with self._changed:
            refused = self._queue.refusal(self._clock.monotonic(), deadline)
        if refused is not None:
            self._metrics.count_refusal()
            raise refused

    def submit(self, job: Job) -> None:
        """Queues a request; `done` is called with its answer or error."""
        alike = likeness_of(job.columns) if is_merged(job.entry.model) else None
        ticket = Ticket(
            likeness=None if alike is None else (job.entry, job.signature, alike),
            cost=(job.entry.name, job.signature),  # not the entry: costs outlive versions
            rows=job.columns.num_examples,
            deadline=job.deadline,
            work=job,
        )
        with self._changed:
            refused = self._queue.offer(ticket, self._clock.monotonic())
            if refused is None:
                self._changed.notify()
        if refused is not None:
            self._metrics.count_refusal()
            raise refused

    @property
    def num_waiting(self) -> int:
        """Number of requests in the queue."""
        with self._changed:
            return self._queue.num_waiting

    @property
    def expected_wait_seconds(self) -> float:
        """Expected wait of a new request."""
        with self._changed:
            return self._queue.expected_wait(self._clock.monotonic())

    def drain(self, seconds: float) -> bool:
        """Rejects new requests and waits for queued and running ones; returns False if the time did not suffice."""
        with self._changed:
            self._queue.is_draining = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._queue.is_idle, seconds)

    def close(self) -> None:
        """Stops the threads; queued requests are rejected. A hanging model call is abandoned."""
        with self._changed:
            self._queue.is_draining = self._is_ending = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.close(1.0)
        while True:
            with self._changed:
                taken = self._queue.take(self._clock.monotonic())
            if not taken.batch and not taken.expired:
                return
            for ticket in [*taken.batch, *taken.expired]:
                ticket.work.done(UnavailableError("the server ended before this request was answered"))

    def _work(self) -> End:
        torch.set_num_threads(1)  # of this thread: other cores run other calls
        while (begun := self._next()) is not None:
            call, batch = begun
            counts = False
            try:
                counts = self._answer([ticket.work for ticket in batch])
            finally:
                with self._changed:
                    self._queue.done(call, batch, self._clock.monotonic(), counts=counts)
                    if self._queue.is_draining:
                        self._changed.notify_all()
        return END

    def _next(self) -> tuple[int, list[Ticket]] | None:
        """Starts the next call; returns its number and its requests, or None at the end."""
        while True:
            with self._changed:
                if self._is_ending:
                    return None
                now = self._clock.monotonic()
                taken = self._queue.take(now)
                call = self._queue.begin(taken.batch, now) if taken.batch else 0
                if not taken.batch and not taken.expired:
                    wait = FOREVER_SECONDS if taken.wait_seconds is None else max(0.0, taken.wait_seconds)
                    self._clock.wait(self._changed, wait)
                    continue
            for ticket in taken.expired:
                self._metrics.count_expired()
                ticket.work.done(DeadlineExceededError("the deadline passed while the request waited"))
            if taken.batch:
                return call, taken.batch

    def _answer(self, jobs: list[Job]) -> bool:
        """Calls the model for all jobs; returns whether it succeeded."""
        try:
            answers = self._ask(jobs)
        except Exception as error:  # noqa: BLE001 - any error is passed to the callers
            if len(jobs) > 1 and isinstance(error, InvalidArgumentError):
                for job in jobs:  # one of them is invalid; retry each alone
                    self._answer([job])
                return False
            for job in jobs:
                job.done(error if isinstance(error, OpError) or len(jobs) == 1 else _copy_of(error))
            return False
        for job, answer in zip(jobs, answers, strict=True):
            job.done(answer)
        return True

    def _ask(self, jobs: list[Job]) -> list[Answer]:
        first = jobs[0]
        begin = self._clock.monotonic()
        columns = first.columns if len(jobs) == 1 else merge([job.columns for job in jobs])
        prediction = first.entry.model.predict(columns, first.signature)
        if len(jobs) == 1:
            parts = [prediction.outputs]
        else:
            parts = split(prediction.outputs, [job.columns.num_examples for job in jobs])
        self._metrics.count_call(first.entry.name, first.signature, self._clock.monotonic() - begin, prediction)
        return [Answer(part, prediction.version) for part in parts]


def _copy_of(error: Exception) -> Exception:
    """Copies an error for one request, so that threads do not share a traceback."""
    return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


def is_merged(model: ServedModel) -> bool:
    """Returns whether requests may be merged into one call; a model with ``answers_alone`` does not allow it."""
    return not getattr(model, "answers_alone", False)


def likeness_of(columns: TypedColumns) -> Hashable | None:
    """Returns the batching key of a request: requests with the same key can be merged. None: it cannot be merged.

    A batch in one message is not merged, nor are columns that all examples share: merging would copy them.
    """
    if "example_batch" in columns:
        return None
    if any(length_of(column) != columns.num_examples for column in columns.values()):
        return None
    return tuple((name, _kind_of(column)) for name, column in columns.items())


def merge(parts: Sequence[TypedColumns]) -> TypedColumns:
    """Concatenates the columns of several requests. REQUIRES: they have the same batching key."""
    joined = {name: _join([part[name] for part in parts]) for name in parts[0]}
    return TypedColumns(joined, parts[0].signature, sum(part.num_examples for part in parts))


def split(outputs: Mapping[str, Tensor], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
    """Splits an answer into the parts of the requests."""
    total = sum(sizes)
    for name, values in outputs.items():
        if values.ndim == 0 or values.shape[0] != total:
            raise InternalError(f"output {name!r}: must have {total} rows, got the shape {list(values.shape)}")
    edges = list(accumulate(sizes, initial=0))
    return [{name: values[begin:end] for name, values in outputs.items()} for begin, end in pairwise(edges)]


def _kind_of(column: Column) -> Hashable:
    if isinstance(column, list):
        return "bytes"
    if isinstance(column, Ragged):
        return "ragged", column.flat_values.dtype
    return column.dtype, column.shape[1:]


def _join(columns: list[Column]) -> Column:
    first = columns[0]
    if isinstance(first, list):
        return [text for column in columns if isinstance(column, list) for text in column]
    if isinstance(first, Tensor):
        return torch.cat([column for column in columns if isinstance(column, Tensor)])
    return Ragged.concat([column for column in columns if isinstance(column, Ragged)])
