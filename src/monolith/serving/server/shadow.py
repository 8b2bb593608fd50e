"""Scores answered requests with another version as well."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.background import PeriodicThread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.serving.request import TypedColumns
    from monolith.serving.server.metrics import ServingMetrics
    from monolith.serving.server.model_threads import Answer
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
