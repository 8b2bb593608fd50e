"""Two parameters that stand for all rows of a module: one for the model, one for its optimizer."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from monolith.errors import FailedPreconditionError
from monolith.nn.embeddings.gradient_step import gradient_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.nn.embeddings.passes import BatchPass, PassRegistry


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
