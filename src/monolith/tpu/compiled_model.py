"""`CompiledModel`: runs a task's `model_fn` by JAX, with rows looked up on the host and gradients returned to torch.

A batch goes this way::

    emb(features)             on the host, by torch: rows [B, W], differentiable as ever
    rows, weights, columns -> one compiled call: loss, predictions, gradients of weights and rows
    Spec(loss, ...)           whose loss.backward() brings those gradients to torch's weights and to the rows

so that optimizers, clipping, checkpoints and hooks are those of every other run, and none of them depends on JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings.batch_context import current_batch_context
from monolith.tpu._arrays import array_of, require_fitting, tensor_of
from monolith.tpu._compilation import compile_call
from monolith.tpu._traced_features import form_of
from monolith.tpu._traced_model import TraceableTask
from monolith.train.step_result import num_examples_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from monolith.tpu._compilation import CompiledCall
    from monolith.tpu.devices import Devices
    from monolith.tpu.torchax_shim import Backend
    from monolith.train.task import Mode, Spec, Task

__all__ = ["CompiledModel"]

_LOW_BITS = (1 << 32) - 1


class _KnownGradients(torch.autograd.Function):
    """A loss whose gradients were computed with it."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *inputs: Tensor) -> Tensor:  # noqa: ARG004
        """Returns the loss; `inputs` are the tensors of the gradients."""
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients, scaled by that of the loss."""
        return None, None, *(each if factor == 1 else each * factor for each in ctx.gradients)


class CompiledModel:
    """Runs the model of a task by JAX. Only the training thread may use it.

    One function is compiled for each mode and form of a batch (columns, shapes, types); a last batch that is smaller
    compiles once more.

    Args:
        task: The task to run.
        backend: JAX.
        devices: Devices to compute on.
    """

    def __init__(self, task: Task, backend: Backend, devices: Devices) -> None:
        self._task = task
        self._backend = backend
        self._devices = devices
        self._traced: TraceableTask | None = None
        self._form: Any = None
        self._calls: dict[Any, CompiledCall] = {}

    @property
    def num_compiled(self) -> int:
        """Functions that were compiled for the present model."""
        return len(self._calls)

    def use(self, model: nn.Module) -> None:
        """Takes another model of the task, as a session builds it; what was compiled stays if it has the same form."""
        made = TraceableTask(self._task, model, self._backend)
        form = (
            [(name, each.shape, each.dtype, each.requires_grad) for name, each in made.weights.items()],
            [(name, each.shape, each.dtype) for name, each in made.buffers.items()],
            str(model),
        )
        if form != self._form:
            self._calls.clear()
        self._traced, self._form = made, form

    def __call__(self, features: Any, mode: Mode) -> Spec:
        """Returns the task's `model_fn` of a batch; the loss is differentiable in mode ``train``.

        Raises:
            UnimplementedError: the model uses an operation that JAX does not have.
            FailedPreconditionError: the model cannot be compiled; the message gives the reason.
            InvalidArgumentError: a batch without examples, or with numbers that do not fit.
        """
        assert self._traced is not None  # noqa: S101 - a session makes its model first
        form, num_rows = form_of(features), num_examples_of(features)
        if num_rows == 0:
            raise InvalidArgumentError(
                f"task {self._task.p.name}: a batch has no examples, and a compiled step needs some; leave it out in"
                " input_fn"
            )
        key = (mode, num_rows, *form.items())
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = compile_call(self._traced, form, num_rows, mode, self._backend)
        rows = {name: self._traced.embeddings[name](features).concat() for name in call.rows}
        (loss, (arrays, buffers)), gradients = call.run(*self._inputs(call, features, rows))
        self._keep(buffers)
        assert call.outputs is not None  # noqa: S101 - it was traced when it ran
        tensors = [tensor_of(array, self._backend) for array in arrays]
        return call.outputs.spec(self._loss(call, loss, gradients, rows), tensors, features)

    def _inputs(
        self, call: CompiledCall, features: Mapping[str, Any], rows: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns trainable and other inputs, on the devices."""
        assert self._traced is not None  # noqa: S101 - see above
        for name in call.columns:
            require_fitting(name, features[name])
        weights = {name: array_of(each, self._backend) for name, each in self._traced.weights.items()}
        weights = self._devices.put(weights)
        placed = {name: self._devices.put_batch(array_of(each, self._backend)) for name, each in rows.items()}
        columns = {name: array_of(features[name], self._backend) for name in call.columns}
        buffers = {name: array_of(each, self._backend) for name, each in self._traced.buffers.items()}
        both = {"weights": weights, "rows": placed}
        learned = {kind: {name: both[kind][name] for name in names} for kind, names in call.learned.items()}
        fixed = {kind: {n: each for n, each in of.items() if n not in learned[kind]} for kind, of in both.items()}
        return learned, {
            **fixed,
            "columns": {name: self._devices.put_batch(array) for name, array in columns.items()},
            "buffers": self._devices.put(buffers),
            "draws": self._devices.put({"of_step": _draws()}),
        }

    def _loss(self, call: CompiledCall, loss: Any, gradients: Any, rows: Mapping[str, Tensor]) -> Tensor | None:
        assert self._traced is not None  # noqa: S101 - see above
        if loss is None:
            return None
        value = tensor_of(loss, self._backend)
        if gradients is None:
            return value
        both: dict[str, Mapping[str, Tensor]] = {"weights": self._traced.weights, "rows": rows}
        learned = [(kind, name) for kind, names in call.learned.items() for name in names]
        found = [tensor_of(gradients[kind][name], self._backend) for kind, name in learned]
        inputs = [both[kind][name] for kind, name in learned]
        known: Tensor = _KnownGradients.apply(value, found, *inputs)  # type: ignore[no-untyped-call]
        return known

    @torch.no_grad()
    def _keep(self, buffers: Mapping[str, Any]) -> None:
        """Puts what the step made of buffers, such as running means, into the model."""
        assert self._traced is not None  # noqa: S101 - see above
        for name, array in buffers.items():
            self._traced.buffers[name].copy_(tensor_of(array, self._backend))


def _draws() -> Any:
    """Returns the random seed of this step, for dropout and the like; a resumed run uses the same."""
    batch_context = current_batch_context()
    number = 0 if batch_context is None or batch_context.stamp is None else batch_context.stamp.seq
    return np.array([torch.initial_seed() & _LOW_BITS, number & _LOW_BITS], np.uint32)
