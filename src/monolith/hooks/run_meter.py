"""Means over several steps: of an evaluation, or of the last steps of training."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.clock import SystemClock
from monolith.metrics import BinnedAUC, MeanSquaredError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.checkpoint import TrainState
    from monolith.clock import Clock
    from monolith.hook import HookedSession, LastStep


class Evaluation:
    """Accumulates the results of steps: loss by example, and an AUC for each head with labels 0 and 1.

    Args:
        with_error: Whether to compute the mean squared error of heads with other labels.
    """

    def __init__(self, *, with_error: bool = False) -> None:
        self._with_error = with_error
        self._errors: dict[str, MeanSquaredError] = {}
        self._loss = 0.0
        self._has_loss = False
        self._examples = 0
        self._weight = 0
        self._aucs: dict[str, BinnedAUC] = {}
        self._not_binary: set[str] = set()

    def add(self, result: LastStep | None) -> None:
        """Adds one batch."""
        if result is None:
            return
        self._examples += result.num_examples
        if result.loss is not None:
            self._has_loss = True
            weight = result.num_examples or 1
            self._loss += float(result.loss) * weight
            self._weight += weight
        for name, (predictions, label) in _heads(result).items():
            self._add_head(name, predictions, label)

    def means(self) -> dict[str, float]:
        """Returns name -> value so far."""
        means = {name: auc.compute() for name, auc in self._aucs.items() if name not in self._not_binary}
        means |= {name: error.compute() for name, error in self._errors.items()}
        if self._has_loss:
            means["loss"] = self._loss / self._weight
        return means | {"examples": self._examples}

    def _add_head(self, name: str, predictions: Tensor, label: Tensor) -> None:
        labels, scores = label.flatten().to(torch.float32), predictions.flatten().to(torch.float32)
        if name not in self._not_binary and _are_clicks(scores, labels):
            self._aucs.setdefault(name, BinnedAUC()).update(scores, labels)
            return
        self._not_binary.add(name)
        if self._with_error and labels.shape == scores.shape:
            self._errors.setdefault(name.removesuffix("auc") + "mse", MeanSquaredError()).update(scores, labels)


def _are_clicks(scores: Tensor, labels: Tensor) -> bool:
    if labels.shape != scores.shape or not bool(((labels == 0) | (labels == 1)).all()):
        return False
    return bool(((scores >= 0) & (scores <= 1)).all())


def _heads(result: LastStep) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns name of the metric -> predictions and label."""
    predictions, label = result.predictions, result.label
    if isinstance(predictions, Tensor) and isinstance(label, Tensor):
        return {"auc": (predictions, label)}
    if isinstance(predictions, Mapping) and isinstance(label, Mapping):
        return {f"{name}_auc": (predictions[name], label[name]) for name in predictions if _is_head(name, result)}
    return {}


def _is_head(name: Any, result: LastStep) -> bool:
    return isinstance(result.predictions[name], Tensor) and isinstance(result.label.get(name), Tensor)


_RECENT_STEPS = 32
_RECENT_EXAMPLES = 1 << 16
"""Metrics cover only the last steps, so few that their cost is negligible."""


class RunMeter:
    """Accumulates every step, and returns the measurements since the last record. A step costs some microseconds."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._recent: deque[LastStep] = deque(maxlen=_RECENT_STEPS)
        self.begin()

    def begin(self) -> None:
        """Discards all measurements."""
        self._recent.clear()
        self._since, self._steps, self._examples = self._clock.monotonic(), 0, 0
        self._loss: Tensor | float | None = None
        self._losses = 0

    def add(self, last: LastStep | None) -> None:
        """Adds a step."""
        self._steps += 1
        if last is None:
            return
        self._examples += last.num_examples
        self._recent.append(last)
        if last.loss is not None:
            self._loss = last.loss if self._loss is None else self._loss + last.loss
            self._losses += 1

    def record(self, session: HookedSession) -> dict[str, float]:
        """Returns name -> number for the steps since the last record, and restarts the measurement.

        ``loss`` is the mean of these steps; ``auc``, or the metric that fits the labels, covers the last of them;
        learning rates and table sizes are current.
        """
        numbers: dict[str, float] = {}
        if self._loss is not None:
            numbers["loss"] = float(self._loss) / self._losses
        numbers |= self._metrics()
        seconds = self._clock.monotonic() - self._since
        if seconds > 0:
            numbers |= {"steps_per_second": self._steps / seconds, "examples_per_second": self._examples / seconds}
        numbers |= learning_rates(session.state) | table_sizes(session.state)
        self.begin()
        return numbers

    def _metrics(self) -> dict[str, float]:
        chosen: list[LastStep] = []
        for result in reversed(self._recent):
            chosen.append(result)
            if sum(step.num_examples for step in chosen) >= _RECENT_EXAMPLES:
                break
        evaluation = Evaluation(with_error=True)
        evaluation.add(_together(chosen))
        means = evaluation.means()
        return {name: value for name, value in means.items() if name not in _NO_METRICS and math.isfinite(value)}


_NO_METRICS = frozenset({"loss", "examples"})


@dataclass(frozen=True, slots=True)
class _Together:
    """Several steps as one: the cost of a metric is mostly per call, not per example."""

    predictions: Any
    label: Any
    num_examples: int
    loss: None = None


def _together(steps: Sequence[LastStep]) -> LastStep:
    return _Together(
        _joined([step.predictions for step in steps]),
        _joined([step.label for step in steps]),
        sum(step.num_examples for step in steps),
    )


def _joined(values: Sequence[Any]) -> Any:
    """Concatenates all numbers, by name where they have names; None where steps differ, or have none."""
    if values and all(isinstance(value, Tensor) for value in values):
        return torch.cat([value.flatten() for value in values])
    if values and all(isinstance(value, Mapping) and value.keys() == values[0].keys() for value in values):
        return {name: _joined([value[name] for value in values]) for name in values[0]}
    return None


def learning_rates(state: TrainState) -> dict[str, float]:
    """Returns ``learning_rate/<optimizer or table>`` -> current rate; a number is appended where there are several."""
    rates = {name: [group["lr"] for group in optimizer.param_groups] for name, optimizer in state.optimizers.items()}
    for embeddings in state.embeddings.values():
        rates |= embeddings.learning_rates()
    return {
        f"learning_rate/{name}" if len(values) == 1 else f"learning_rate/{name}/{place}": float(rate)
        for name, values in rates.items()
        for place, rate in enumerate(values)
    }


def table_sizes(state: TrainState) -> dict[str, float]:
    """Returns ``rows`` and ``memory_bytes`` of all tables, ``table_rows/<table>`` of each, ``expired_rows`` if any."""
    stats = [store.stats() for store in state.stores.values()]
    if not stats:
        return {}
    sizes = {
        "rows": float(sum(store_stats.rows for store_stats in stats)),
        "memory_bytes": float(sum(store_stats.memory_bytes for store_stats in stats)),
    }
    if any(store_stats.evicted for store_stats in stats):
        sizes["expired_rows"] = float(sum(store_stats.evicted for store_stats in stats))
    for store_stats in stats:
        for table, numbers in store_stats.tables.items():
            sizes[f"table_rows/{table}"] = sizes.get(f"table_rows/{table}", 0.0) + numbers["rows"]
    return sizes
