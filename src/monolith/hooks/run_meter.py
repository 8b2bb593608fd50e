"""The numbers of a run by which a person follows it: loss, metrics, rates, speed and table sizes."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.hooks.evaluation import Evaluation

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.checkpoint import TrainState
    from monolith.clock import Clock
    from monolith.hook import HookedSession, LastStep

__all__ = ["RunMeter"]

_RECENT_STEPS = 32
_RECENT_EXAMPLES = 1 << 16
"""Metrics are of the last steps alone, as many as cost nothing beside the steps in between."""


class RunMeter:
    """Sees every step and tells now and then what happened since the last time. A step costs a microsecond or two.

    Args:
        clock: Measures speed.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._recent: deque[LastStep] = deque(maxlen=_RECENT_STEPS)
        self.begin()

    def begin(self) -> None:
        """Forgets what it has seen."""
        self._recent.clear()
        self._since, self._steps, self._examples = self._clock.monotonic(), 0, 0
        self._loss: Tensor | float | None = None
        self._losses = 0

    def add(self, last: LastStep | None) -> None:
        """Takes a step into account."""
        self._steps += 1
        if last is None:
            return
        self._examples += last.num_examples
        self._recent.append(last)
        if last.loss is not None:
            self._loss = last.loss if self._loss is None else self._loss + last.loss
            self._losses += 1

    def record(self, session: HookedSession) -> dict[str, float]:
        """Name -> number, of the steps since the last record, and begins anew.

        ``loss`` is the mean of these steps; ``auc``, or what fits the labels, is of the last of them; the learning
        rates and table sizes are those of now.
        """
        found: dict[str, float] = {}
        if self._loss is not None:
            found["loss"] = float(self._loss) / self._losses
        found |= self._metrics()
        seconds = self._clock.monotonic() - self._since
        if seconds > 0:
            found |= {"steps_per_second": self._steps / seconds, "examples_per_second": self._examples / seconds}
        found |= learning_rates(session.state) | table_sizes(session.state)
        self.begin()
        return found

    def _metrics(self) -> dict[str, float]:
        evaluation, examples = Evaluation(with_error=True), 0
        for result in reversed(self._recent):
            evaluation.add(result)
            examples += result.num_examples
            if examples >= _RECENT_EXAMPLES:
                break
        means = evaluation.means()
        return {name: value for name, value in means.items() if name not in _NO_METRICS and math.isfinite(value)}


_NO_METRICS = frozenset({"loss", "examples"})


def learning_rates(state: TrainState) -> dict[str, float]:
    """``learning_rate/<optimizer or table>`` -> the rate of now; with a number behind it where there are several."""
    rates = {name: [group["lr"] for group in each.param_groups] for name, each in state.optimizers.items()}
    for embeddings in state.embeddings.values():
        rates |= embeddings.learning_rates()
    return {
        f"learning_rate/{name}" if len(each) == 1 else f"learning_rate/{name}/{place}": float(rate)
        for name, each in rates.items()
        for place, rate in enumerate(each)
    }


def table_sizes(state: TrainState) -> dict[str, float]:
    """``rows`` and ``memory_bytes`` of all tables, and ``table_rows/<table>`` of each."""
    stats = [store.stats() for store in state.stores.values()]
    if not stats:
        return {}
    sizes = {
        "rows": float(sum(each.rows for each in stats)),
        "memory_bytes": float(sum(each.memory_bytes for each in stats)),
    }
    for each in stats:
        for table, numbers in each.tables.items():
            sizes[f"table_rows/{table}"] = sizes.get(f"table_rows/{table}", 0.0) + numbers["rows"]
    return sizes
