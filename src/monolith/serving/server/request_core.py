"""The path of a request from a front end to the models, common to all front ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.background import PeriodicThread
from monolith.errors import DeadlineExceededError, InternalError, NotFoundError, OpError
from monolith.serving.request import Column, fit
from monolith.serving.request_log import AnsweredRequest, RequestLog
from monolith.serving.request_log.log import request_id_of
from monolith.serving.server.model_threads import Answer, Job, ModelThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from monolith.export import Signature
    from monolith.serving.request import TypedColumns
    from monolith.serving.server.config import LimitsConfig
    from monolith.serving.server.metrics import ServingMetrics
    from monolith.serving.server.registry import ModelRegistry, RegisteredModel

MOST_WAITING = 64
"""Maximum number of answered requests in the queue of the shadow; further ones are dropped."""
MOST_EXAMPLES = 20_000
"""Maximum number of examples of these requests."""


@dataclass(slots=True)
class ShadowTally:
    """Statistics of the differences between the scores of a shadow and the answers."""

    version: int
    requests: int = 0
    """Number of scored requests."""
    dropped: int = 0
    """Requests dropped because the shadow was busy."""
    failed: int = 0
    """Requests for which the shadow raised an error."""
    scores: int = 0
    """Number of compared scores: finite on both sides."""
    not_finite: int = 0
    """Number of scores of the shadow that are NaN or infinite."""
    difference: float = 0.0
    """Sum of absolute differences."""

    def to_json(self) -> dict[str, Any]:
        """Returns the statistics as plain values."""
        mean = self.difference / self.scores if self.scores else None
        return {
            "scoring_version": self.version,
            "requests": self.requests,
            "dropped": self.dropped,
            "failed": self.failed,
            "scores": self.scores,
            "not_finite": self.not_finite,
            "mean_absolute_difference": mean,
        }


class _Work(NamedTuple):
    entry: RegisteredModel
    signature: str
    columns: TypedColumns
    answer: Answer


class ShadowScorer:
    """Background thread that calls shadows; answers never wait for it. Thread-safe."""

    def __init__(self, registry: ModelRegistry, metrics: ServingMetrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._lock = threading.Lock()  # guards the two fields below, and tallies
        self._waiting: deque[_Work] = deque()
        self._examples = 0
        self._thread = PeriodicThread(self._score_next, every=None, name="shadow")
        self._tallies = registry.shadow_tallies

    def offer(self, name: str, signature: str, columns: TypedColumns, answer: Answer) -> None:
        """Queues an answered request if its model has a shadow, or drops it. Never blocks, never raises."""
        try:
            entry = self._registry.take_shadow(name, answer.version.export)
        except Exception:  # noqa: BLE001 - already answered; the shadow was just removed
            return
        if entry is None:
            return
        with self._lock:
            is_full = len(self._waiting) >= MOST_WAITING or self._examples + columns.num_examples > MOST_EXAMPLES
            if not is_full and not self._thread.closed.is_set():
                self._examples += columns.num_examples
                self._waiting.append(_Work(entry, signature, columns, answer))
                if self._thread.ident is None:
                    self._thread.start()
                self._thread.wake()
                return
            self._tally_of(entry).dropped += 1
        self._metrics.count_shadow(name, entry.version, "dropped")
        self._registry.give_back(entry)

    def close(self) -> None:
        """Stops the thread; queued requests are dropped, and a hanging model call is abandoned."""
        with self._lock:
            self._thread.closed.set()
            left = list(self._waiting)
            self._waiting.clear()
        for work in left:
            self._registry.give_back(work.entry)
        self._thread.close(1.0)

    def _score_next(self) -> float | None:
        torch.set_num_threads(1)  # of this thread; leaves the cores to requests
        with self._lock:
            if not self._waiting:
                return None
            work = self._waiting.popleft()
            self._examples -= work.columns.num_examples
        try:
            self._score(work)
        finally:
            self._registry.give_back(work.entry)
        return 0.0

    def _score(self, work: _Work) -> None:
        entry = work.entry
        try:
            outputs = entry.model.predict(work.columns, work.signature).outputs
            compared = _compare(outputs, work.answer.outputs)
        except Exception:  # noqa: BLE001 - errors of a shadow are counted and affect no answer
            with self._lock:
                self._tally_of(entry).failed += 1
            self._metrics.count_shadow(entry.name, entry.version, "failed")
            return
        with self._lock:
            tally = self._tally_of(entry)
            tally.requests += 1
            tally.scores += compared.scores
            tally.not_finite += compared.not_finite
            tally.difference += compared.difference
        self._metrics.count_shadow(entry.name, entry.version, "scored")
        self._metrics.show_shadow(entry.name, entry.version, compared)

    def _tally_of(self, entry: RegisteredModel) -> ShadowTally:
        known = self._tallies.get(entry.name)
        if known is None or known.version != entry.version:
            known = self._tallies[entry.name] = ShadowTally(entry.version)
        return known


class Compared(NamedTuple):
    """Comparison of the scores of one request."""

    scores: int
    not_finite: int
    difference: float


def _compare(outputs: Mapping[str, Tensor], answered: Mapping[str, Tensor]) -> Compared:
    """Compares outputs; raises a `ValueError` if their names or shapes differ."""
    scores, not_finite, difference = 0, 0, 0.0
    for name, values in answered.items():
        if not values.is_floating_point():
            continue
        if name not in outputs or outputs[name].shape != values.shape:
            raise ValueError(f"the shadow has no output {name!r} of this shape")
        mine, theirs = outputs[name].reshape(-1).to(torch.float64), values.reshape(-1).to(torch.float64)
        apart = (mine - theirs).abs()
        both = torch.isfinite(apart)
        scores += int(both.sum())
        not_finite += int((~torch.isfinite(mine)).sum())
        difference += float(apart[both].sum())
    return Compared(scores, not_finite, difference)


_log = logging.getLogger(__name__)

_HTTP = {
    1: 499,  # cancelled, nginx's convention
    3: HTTPStatus.BAD_REQUEST,
    4: HTTPStatus.GATEWAY_TIMEOUT,
    5: HTTPStatus.NOT_FOUND,
    6: HTTPStatus.CONFLICT,
    7: HTTPStatus.FORBIDDEN,
    8: HTTPStatus.TOO_MANY_REQUESTS,
    9: HTTPStatus.PRECONDITION_FAILED,
    11: HTTPStatus.BAD_REQUEST,
    12: HTTPStatus.NOT_IMPLEMENTED,
    14: HTTPStatus.SERVICE_UNAVAILABLE,
    16: HTTPStatus.UNAUTHORIZED,
}
_LONGEST = 500


class ErrorStatus(NamedTuple):
    """Status of an error for a client."""

    code: int
    """gRPC status code."""
    http: int
    sentence: str
    retry_after_seconds: float | None
    """When to retry, if that may help."""


def refusal_of(error: BaseException) -> ErrorStatus:
    """Returns the status of an error; an unexpected error is logged, and reported without details."""
    if not isinstance(error, OpError):
        _log.error("a request failed", exc_info=error)
        error = InternalError(f"the model failed: {type(error).__name__}; see the log of the server")
    sentence = " ".join(error.message.split())
    sentence = sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."
    code = error.error_code
    return ErrorStatus(code, int(_HTTP.get(code, 500)), sentence, getattr(error, "retry_after_seconds", None))


class Target(NamedTuple):
    """The requested model; without version and label its default version."""

    name: str
    version: int | None = None
    label: str | None = None
    request_id: str | None = None
    """Id given by the client: requests with the same id are all answered by the canary, or none."""


def deadline_error(seconds: float) -> DeadlineExceededError:
    """Returns the error for an expired request."""
    return DeadlineExceededError(f"the request was not answered within {seconds:g} s")


class RequestDispatcher:
    """Path of decoded requests to models and of their answers. Thread-safe."""

    def __init__(
        self, registry: ModelRegistry, threads: ModelThreads, *, limits: LimitsConfig, metrics: ServingMetrics
    ) -> None:
        self.registry = registry
        self.limits = limits
        self.threads = threads
        self.metrics = metrics
        self.request_log: RequestLog | None = None
        """Log of answered requests; None: they are not logged."""
        self.shadow = ShadowScorer(registry, metrics)
        """Scores answered requests again, if the model has a shadow."""
        self.is_ending = False
        """Whether the server is shutting down and therefore not ready."""

    def why_not_ready(self) -> str | None:
        """Returns why the server is not ready; None: it is ready."""
        return "the server is about to end" if self.is_ending else self.registry.why_not_ready()

    def deadline_of(self, seconds: float | None) -> float:
        """Returns the deadline of a request on the monotonic clock, given the client's timeout."""
        limit = self.limits.request_seconds
        return time.monotonic() + (limit if seconds is None else max(0.0, min(seconds, limit)))

    def request_id_of(self, client_id: bytes | None) -> bytes | None:
        """Returns the id of a request for the log, from the id given by its client; None if there is no log."""
        return None if self.request_log is None else request_id_of(client_id)

    def ask(
        self,
        target: Target,
        signature: str,
        decode: Callable[[Signature], Mapping[str, Column]],
        *,
        deadline: float,
        done: Callable[[Answer | BaseException], None],
        request_id: bytes | None = None,
    ) -> None:
        """Submits a request to a model. If this returns, another thread calls `done` once with the answer or the error.

        `decode` decodes the columns of the request for its signature; `done` must not block. Without a `request_id`,
        the request is not logged.

        Raises:
            NotFoundError: the model, version, label or signature does not exist.
            InvalidArgumentError: the inputs do not fit the signature.
            OverloadedError: the request would wait too long.
            UnavailableError: the server is shutting down.
        """
        begin = time.monotonic()
        if target.version is None and target.label is None:
            entry = self.registry.route(target.name, target.request_id)
        else:
            entry = self.registry.take(target.name, version=target.version, label=target.label)
        try:
            there = entry.model.signatures
            known = there.get(signature)
            if known is None:
                raise NotFoundError(  # noqa: TRY301 - the entry is given back below
                    f"model {entry.name!r}: there is no signature {signature!r}; signatures are: {', '.join(there)}"
                )
            columns = fit(decode(known), known, max_examples=self.limits.examples)
        except BaseException:
            self.registry.give_back(entry)
            raise

        def finish(outcome: Answer | BaseException) -> None:
            self.registry.give_back(entry)
            code = 0 if isinstance(outcome, Answer) else refusal_of(outcome).code
            self.metrics.count_answer(entry.name, signature, time.monotonic() - begin, code)
            done(outcome)
            if not isinstance(outcome, Answer):
                return
            self.shadow.offer(entry.name, signature, columns, outcome)
            if request_id is not None and self.request_log is not None:
                fields = (request_id, entry.name, signature, known.inputs, columns, columns.num_examples)
                self.request_log.answered(AnsweredRequest(*fields, outcome.outputs, outcome.version))

        try:
            self.threads.submit(Job(entry, signature, columns, deadline, finish))
        except BaseException:
            self.registry.give_back(entry)
            raise
