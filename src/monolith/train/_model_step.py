"""One step of a task: forward, and in training backward and the updates of weights and rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monolith.errors import FailedPreconditionError, OutOfRangeError
from monolith.nn.embeddings import RowAnchor
from monolith.optim import clip_factor, global_norm, linear_warmup
from monolith.tensors import Ragged
from monolith.train._dense_step import StepGradients
from monolith.train.task import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.nn import Parameter

    from monolith.checkpoint import TrainState
    from monolith.nn import BatchContext, Embeddings
    from monolith.nn.embeddings import GradientStep
    from monolith.tables import BatchStamp
    from monolith.train._dense_step import DenseStep
    from monolith.train._table_pipeline import TablePipeline
    from monolith.train.strategies.strategy import Strategy
    from monolith.train.task import Mode, Task


@dataclass(slots=True, eq=False)  # not frozen: one is made for each step, and that takes four times as long
class StepResult:
    """The step that ran last. Nothing in it is differentiable any more."""

    loss: Tensor | None
    """A scalar; None where the task computed none."""
    predictions: Any
    """Predictions as returned by the task: a tensor, or several by name."""
    label: Any
    """Labels as returned by the task."""
    num_examples: int
    """Examples of the batch; 0 if unknown."""

    @classmethod
    def of(cls, spec: Spec, features: Any) -> StepResult:
        """Makes the result of what a task returned for a batch."""
        loss = None if spec.loss is None else spec.loss.detach()
        return cls(loss, _detached(spec.predictions), _detached(spec.label), num_examples_of(features))


def num_examples_of(features: Any) -> int:
    """Returns the number of rows of a batch: its own count, else the length of its first column."""
    if isinstance(features, Tensor):
        return features.shape[0] if features.ndim else 1
    if type(features) is dict and features:  # the usual batch, without what an abstract class costs
        return num_examples_of(next(iter(features.values())))
    rows = getattr(features, "num_rows", None)
    if isinstance(rows, int):
        return rows
    if isinstance(features, Mapping):
        return next((num_examples_of(value) for value in features.values()), 0)
    if isinstance(features, list | tuple):
        return num_examples_of(features[0]) if features and isinstance(features[0], Tensor | Ragged) else len(features)
    return 0


def _detached(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.detach() if values.requires_grad else values
    if isinstance(values, Mapping):
        return {name: _detached(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_detached(value) for value in values]
    return values


class ModelStep:
    """Runs a task on batches. Only the training thread may use it."""

    def __init__(
        self, task: Task, state: TrainState, pipeline: TablePipeline, dense: DenseStep, *, strategy: Strategy
    ) -> None:
        self._task = task
        self._state = state
        self._pipeline = pipeline
        self._dense = dense
        self._strategy = strategy
        self._optimizers = list(state.optimizers.values())
        self._embeddings: Sequence[Embeddings] = list(state.embeddings.values())
        self._clip = _clipping(task)
        self._decay = float(task.p.dense_weight_decay)
        self.is_whole = True
        """Whether the state is consistent (no partially applied step); False from the first update of a step to its
        last, which is that of the position: one saved too early loses a batch, one saved too late counts it twice."""

    def train(self, batch_context: BatchContext) -> StepResult:
        """Learns from one batch."""
        with batch_context:
            self._dense.begin()
            with self._pipeline.explained():
                spec = self._spec(batch_context, "train")
            self.is_whole = False
            if spec.train_op is not None:
                self._require_own_weights()
                self._pipeline.wait_for_push()
                self._run_train_op(spec.train_op)
            else:
                self._learn(spec, batch_context.stamp)
            if batch_context.stamp is not None:
                self._state.applied[batch_context.stamp.worker] = batch_context.stamp
            self.is_whole = True
        return StepResult.of(spec, batch_context.features)

    @torch.no_grad()
    def look(self, batch_context: BatchContext, mode: Mode) -> StepResult:
        """Evaluates or predicts one batch, and changes nothing."""
        with batch_context:
            spec = self._spec(batch_context, mode)
        return StepResult.of(spec, batch_context.features)

    def _spec(self, batch_context: BatchContext, mode: Mode) -> Spec:
        spec = self._task.model_fn(batch_context.features, mode)
        if not isinstance(spec, Spec):
            raise TypeError(
                f"{type(self._task).__name__}.model_fn: expected Spec(loss, predictions, label), got"
                f" {type(spec).__name__}"
            )
        return spec

    def _require_own_weights(self) -> None:
        if self._state.dense is not None:
            raise FailedPreconditionError(
                f"{type(self._task).__name__}.model_fn: Spec(train_op=...) moves weights of this process, but servers"
                " keep them; give Spec(loss=...), or train without servers"
            )

    def _run_train_op(self, train_op: Callable[[], Any]) -> None:
        """Weights, rows and the step are its business; ranks only see to it that they make the same steps."""
        train_op()
        if self._dense.in_step:
            reached = self._state.global_step
            self._dense.combine(StepGradients(weights=(), num_pushes=0, reached=reached, why_refused=lambda: None))

    def _learn(self, spec: Spec, stamp: BatchStamp | None) -> None:
        if spec.loss is None:
            raise FailedPreconditionError(
                f"{type(self._task).__name__}.model_fn: training needs Spec(loss=...) or Spec(train_op=...), got"
                " neither"
            )
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        if spec.loss.requires_grad:
            spec.loss.backward()  # type: ignore[no-untyped-call]
        # What the last step postponed is applied by now, or waited for: updates are numbered in their order.
        self._pipeline.wait_for_push()
        row_scale = self._clip_gradients()
        step = self._state.global_step
        taken = self._combine(spec.loss, row_scale, step)
        self._decay_weights()
        self._dense.step(stamp, step)
        self._pipeline.push(taken)
        in_flight = max(self._pipeline.in_flight, self._dense.in_flight)
        self._advance(self._strategy.count_step(step, stamp, in_flight=in_flight))

    def follow(self) -> None:
        """Makes a step of other processes, without a batch: takes their gradients, and follows their updates of rows.

        Raises:
            OutOfRangeError: no process has a batch.
        """
        followed = self._dense.follow(self.weights)
        if followed is None:
            raise OutOfRangeError("no rank has more batches")
        self.is_whole = False
        self._decay_weights()
        self._dense.step(None, followed.reached - 1)
        self._advance(followed.reached)
        self.is_whole = True
        self._pipeline.push_nothing(followed.num_pushes, followed.reached - 1)

    def _combine(self, loss: Tensor, scale: float, step: int) -> list[GradientStep]:
        """Takes the gradients of rows, once all that train in step with this process have theirs, too."""
        if not self._dense.in_step:
            return self._take_rows(scale, step)
        check = NonFiniteCheck(loss, self._state, scale)
        taken = self._take_rows(scale if check.has_scale else 1.0, step)
        gradients = StepGradients(
            weights=self.weights,
            num_pushes=len(taken),
            reached=step + 1,
            why_refused=lambda: check.reason(self.weights, taken),
        )
        try:
            self._dense.combine(gradients)
        except BaseException:
            for gradient in taken:
                gradient.drop()
            self.is_whole = True  # nothing has changed
            raise
        return taken

    def _take_rows(self, scale: float, step: int) -> list[GradientStep]:
        taken = [embeddings.take_step(scale=scale, global_step=step) for embeddings in self._embeddings]
        return [gradient for gradient in taken if gradient is not None]

    def _advance(self, reached: int) -> None:
        for schedule in self._state.schedules.values():
            for _ in range(reached - self._state.global_step):  # those of other workers, too
                schedule.step()  # type: ignore[attr-defined]  # a schedule has one
        self._state.global_step = reached

    def _clip_gradients(self) -> float:
        """Clips the dense gradients; returns the factor of the rows' gradients."""
        if self._clip is None:
            return 1.0
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = global_norm([*gradients, *(embeddings.grad_norm() for embeddings in self._embeddings)])
        dense_limit, row_limit = self._clip(self._state.global_step)
        factor = clip_factor(norm, dense_limit)
        for gradient in gradients:
            gradient.mul_(factor)
        # A limit of 0, as at the start of a warm-up, clips everything.
        return 0.0 if row_limit == 0 else float(clip_factor(norm, row_limit))

    def _decay_weights(self) -> None:
        if self._decay:
            for weight in self.weights:
                if weight.grad is not None:
                    weight.grad.add_(weight.detach(), alpha=self._decay)

    @property
    def weights(self) -> list[Parameter]:
        """Returns the weights that the optimizers update, by their current groups; without rows."""
        weights = [
            weight for optimizer in self._optimizers for group in optimizer.param_groups for weight in group["params"]
        ]
        return [weight for weight in weights if not isinstance(weight, RowAnchor)]


def _clipping(task: Task) -> Callable[[int], tuple[float, float]] | None:
    """Returns step -> limits of the common norm for dense gradients and for those of rows."""
    limit, warmup_steps = task.p.clip_norm, task.p.sparse_norm_warmup_steps
    if limit is None:
        if warmup_steps is not None:
            raise ValueError("task: sparse_norm_warmup_steps needs clip_norm, which is None; set both or neither")
        return None
    if not float(limit) > 0:
        raise ValueError(f"task: clip_norm must be > 0 or None, got {limit!r}")
    if warmup_steps is None:
        return lambda _: (float(limit), float(limit))
    ramp = linear_warmup(float(limit), int(warmup_steps))
    return lambda step: (float(limit), ramp(step))


class NonFiniteCheck:
    """Checks loss and gradients of one batch for NaN and infinity."""

    def __init__(self, loss: Tensor, state: TrainState, scale: float) -> None:
        self._loss = loss
        self._state = state
        self.has_scale = math.isfinite(scale)
        """Whether the clip factor can be applied."""

    def reason(self, weights: Sequence[Parameter], steps: Sequence[GradientStep]) -> str | None:
        """Returns a text that names what is not finite, or None."""
        if not bool(torch.isfinite(self._loss.detach()).all()):
            return f"its loss is {float(self._loss.detach()):g}"
        bad = next((weight for weight in weights if weight.grad is not None and not _is_finite(weight.grad)), None)
        if bad is not None:
            return f"the gradient of weight {self._name_of(bad)!r} is not finite"
        reason = next((refusal for step in steps if (refusal := step.refusal()) is not None), None)
        return reason if reason is not None or self.has_scale else "the norm of its gradients is not finite"

    def _name_of(self, weight: Parameter) -> str:
        named = [] if self._state.model is None else list(self._state.model.named_parameters())
        return next((name for name, named_weight in named if named_weight is weight), "(not one of the model)")


def _is_finite(values: Tensor) -> bool:
    # A sum is one pass over the values; only if it is not finite are all of them checked.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
