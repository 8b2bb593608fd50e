"""The rows of a module as torch sees them: parameters, the norm of their gradients, and an optimizer with its rates."""

from __future__ import annotations

import math
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.optim import Optimizer

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.nn.embeddings.pooling import values_of
from monolith.tables import buckets_of_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from monolith.nn.embeddings.embeddings import Embeddings
    from monolith.nn.embeddings.merge import LearnedSegment, MergedTable
    from monolith.nn.embeddings.passes import BatchPass, PassRegistry
    from monolith.tables import Plan, Schema


class RowAnchor(nn.Parameter):
    """A zero whose gradient is zero. The presence of a gradient shows that rows have gradients.

    So `model.zero_grad()`, which sets the gradients of all parameters to None, is seen by the module, and so is
    `requires_grad_(False)`. Optimizers, clipping and averages that get it with the other parameters leave it zero and
    learn nothing from it. It is not in a state dictionary.
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Self:
        """Creates the parameter; torch makes copies by these arguments."""
        parameter: Self = super().__new__(cls, torch.zeros(1) if data is None else data, requires_grad)
        return parameter


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """Returns `model.parameters()` without the anchors, which are no weights."""
    return [parameter for parameter in model.parameters() if not isinstance(parameter, RowAnchor)]


class RowGradient(RowAnchor):
    """A parameter whose gradient is one number: the L2 norm of the gradients that the next step applies to rows.

    `GradScaler.unscale_` and `clip_grad_norm_` multiply it, and the step multiplies the gradients of rows by the same
    factor. A gradient of a row that is not finite makes the norm infinite or NaN, by which a `GradScaler` skips the
    step. The norm is computed on access.

    It is a parameter of `RowsOptimizer` and not of the module: an optimizer with all parameters of a model has the
    anchor of the module instead, whose gradient is zero.
    """

    _registry: weakref.ReferenceType[PassRegistry]
    _norm: float
    """The gradient before torch multiplied it."""
    _value: Tensor | None
    _num_gradients: int
    """Number of gradients in the registry when the norm was computed."""

    def __new__(cls, registry: PassRegistry) -> Self:
        """Creates the parameter; torch makes parameters by `__new__`."""
        parameter: Self = super().__new__(cls)
        parameter._registry = weakref.ref(registry)
        parameter._norm, parameter._value, parameter._num_gradients = 0.0, None, 0
        return parameter

    @property
    def grad(self) -> Tensor | None:
        """float32 [1] on the device of the module; None without gradients."""
        registry = self._of_registry()
        passes = registry.ready()
        if not passes:
            return None
        if self._value is None or self._num_gradients != registry.num_gradients:
            self.factor()
            if registry.is_shared_by_ranks:
                raise FailedPreconditionError(
                    "rows: GradScaler and clipping of optimizer.param_groups need the gradients of all ranks, and each"
                    " rank has its own; use bfloat16, and clip by the step: emb.step(scale=...)"
                )
            norm = gradient_norm(passes, registry.schema).float()
            self._norm, self._num_gradients = float(norm), registry.num_gradients
            self._value = norm.reshape(1).to(registry.anchor.device, copy=True)
        return self._value

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self._value = value
        if value is None:
            registry = self._of_registry()
            registry.discard()
            registry.anchor.grad = None

    @property
    def requires_grad(self) -> bool:
        """`requires_grad` of the anchor: False freezes the rows."""
        return self._of_registry().anchor.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._of_registry().anchor.requires_grad = value

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Sets `requires_grad`."""
        self.requires_grad = requires_grad
        return self

    def factor(self) -> float:
        """Returns the factor by which torch has multiplied the gradients of the next step; 1.0 if it has not.

        Raises:
            FailedPreconditionError: further gradients came after that.
        """
        if self._value is None or not 0 < self._norm < float("inf"):
            return 1.0
        factor = float(self._value) / self._norm
        if factor != 1 and self._num_gradients != self._of_registry().num_gradients:
            raise FailedPreconditionError(
                "rows: there was a backward pass after unscale_() or clipping, so that some gradients are scaled and"
                " some are not; call unscale_() and clip once, after the last backward pass before the step, and clear"
                " these gradients by zero_grad()"
            )
        return factor

    def scale(self, passes: Sequence[BatchPass]) -> None:
        """Multiplies the gradients of these passes, which a step takes, by the factor; it is 1 from then on."""
        factor = self.factor()
        if factor != 1:
            for batch_pass in passes:
                if batch_pass.gradient is not None:
                    batch_pass.gradient = batch_pass.gradient * factor
                    batch_pass.is_finite = batch_pass.is_finite and abs(factor) <= 1
        self._value = None

    def forget(self) -> None:
        """Resets the norm after the gradients were cleared."""
        self._value = None

    def _of_registry(self) -> PassRegistry:
        registry = self._registry()
        if registry is None:
            raise FailedPreconditionError("rows: the Embeddings of this optimizer do not exist any more")
        return registry


def gradient_norm(passes: Sequence[BatchPass], schema: Schema) -> Tensor:
    """Returns the L2 norm of the gradients of all rows; a row in several passes has the sum of its gradients."""
    updates = [(batch_pass.plan, batch_pass.gradient) for batch_pass in passes if batch_pass.gradient is not None]
    if len(updates) == 1:
        return _norm(updates[0][1]).cpu()
    norms = [_norm(_merged_rows(updates, schema, table)).cpu() for table in range(len(schema.tables))]
    return _norm(torch.stack(norms))


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = vector_norm(values)
    if not torch.isfinite(norm):  # squares of large values may be too large for float32, though the norm is not
        norm = vector_norm(values, dtype=torch.float64).to(values.dtype)
    return norm


def _merged_rows(updates: Sequence[tuple[Plan, Tensor]], schema: Schema, table: int) -> Tensor:
    """Returns [distinct ids of all plans, dim]: the gradients of one table, on their device."""
    dim = schema.dims[table]
    names: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
    rows = [updates[0][1].new_empty(0, dim) if updates else torch.empty(0, dim)]
    for plan, gradient in updates:
        # A key identifies one row only together with its bucket.
        buckets = buckets_of_plan(plan.splits.numpy(), len(schema.tables))
        own = (plan.tables == table).numpy()
        names.append(np.stack([buckets[own].astype(np.int64), plan.unique_ids.numpy()[own]], axis=1))
        rows.append(values_of(plan, gradient, schema.dims, [number == table for number in range(len(schema.dims))]))
    rows = [part.view(-1, dim) for part in rows]
    distinct, inverse = np.unique(np.concatenate(names), axis=0, return_inverse=True)
    places = torch.from_numpy(inverse.reshape(-1)).to(rows[0].device)
    return rows[0].new_zeros(len(distinct), dim).index_add_(0, places, torch.cat(rows))


class RowsOptimizer(Optimizer):
    """Steps and clears the rows of an `Embeddings`, together with a dense optimizer if it has one.

    The slots define how rows learn, and at which rates; `lr` of the group of rows, 1 at first, is a factor of
    all these rates, through which schedulers of torch change them. Optimizer state of rows is saved with the rows.

    A `GradScaler` of torch unscales and skips it like any optimizer: the parameter of the group of rows has their norm
    as its gradient (`RowGradient`).

    Args:
        module: The module of the rows.
        beside: A dense optimizer that is stepped first, for trainers that take one optimizer only. Its groups follow
            the one of rows, and are its own: a scheduler changes both.

    >>> from monolith.nn import Embeddings, Slot
    >>> emb = Embeddings({"user": Slot(dim=2)})
    >>> optimizer = emb.optimizer()
    >>> emb({"user": torch.tensor([7, 8])})["user"].sum().backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    >>> emb.num_rows
    2
    """

    def __init__(self, module: Embeddings, beside: Optimizer | None = None) -> None:
        if beside is not None and not isinstance(beside, Optimizer):
            raise TypeError(f"optimizer: `beside` must be an optimizer of torch, got {type(beside).__name__}")
        self._module = module
        self._beside = beside
        self._has_warned = False
        super().__init__([module.row_gradient], {"lr": 1.0})
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes the step of the dense optimizer, if there is one, then that of the rows, if they have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._beside is not None:
            self._beside.step()
        taken = self._module.take_step(rate_factor=float(self.param_groups[0]["lr"]))
        if taken is not None:
            taken.apply()
        else:
            self._warn_of_cleared_gradients()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of rows and of the dense optimizer."""
        self._module.zero_grad(set_to_none)
        if self._beside is not None:
            self._beside.zero_grad(set_to_none)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._beside is not None:
            self._beside.__setstate__({"state": self.state, "param_groups": self.param_groups[1:]})
        self._share()

    def _share(self) -> None:
        """Shares groups and state with the dense optimizer, which keeps reading and writing its own."""
        if self._beside is not None:
            self.param_groups = [self.param_groups[0], *self._beside.param_groups]
            self.state = self._beside.state

    def _warn_of_cleared_gradients(self) -> None:
        num_cleared = self._module.num_cleared
        if num_cleared and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"rows: the gradients of {num_cleared} backward passes were cleared before the step, by zero_grad() of"
                " the model or of another optimizer with all its parameters; step all optimizers before you clear",
                stacklevel=3,
            )


class _Named(NamedTuple):
    slots: tuple[str, ...]
    segment: LearnedSegment


class LearningRates:
    """Numbers, schedules and optimizers, in the order in which a store takes their rates."""

    def __init__(self, tables: Sequence[MergedTable]) -> None:
        """Takes the tables in sorted-name order."""
        self._segments = [_Named(tuple(table.slots), segment) for table in tables for segment in table.segments]
        self._last: tuple[list[float], Tensor] = [], torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Returns float32 [S], read-only: the tensor of the last step where no rate has changed.

        Raises:
            InvalidArgumentError: a schedule that gives no usable number; names its slots.
        """
        numbers, last = self.numbers(step), self._last
        if numbers != last[0]:
            last = self._last = numbers, torch.tensor(numbers, dtype=torch.float32)
        return last[1]

    def numbers(self, step: int) -> list[float]:
        """Returns the rates of a step as numbers."""
        return [_rate(segment, step) for segment in self._segments]


def _rate(named: _Named, step: int) -> float:
    rate = named.segment.rate
    if rate is None:
        return named.segment.segment.optimizer.learning_rate_at(step)
    number = rate(step) if callable(rate) else rate
    try:
        value = float(number)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InvalidArgumentError(
            f"slots {', '.join(map(repr, named.slots))}: the learning rate of step {step} must be a finite number >= 0,"
            f" got {number!r} from {rate!r}"
        )
    return value
