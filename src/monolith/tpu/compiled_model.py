"""`CompiledModel`: runs a task's `model_fn` by JAX, with rows looked up on the host and gradients returned to torch.

A batch goes this way::

    emb(features)             on the host, by torch: rows [B, W], differentiable as ever
    rows, weights, columns -> one compiled call: loss, predictions, gradients of weights and rows
    Spec(loss, ...)           whose loss.backward() brings those gradients to torch's weights and to the rows

so that optimizers, clipping, checkpoints and hooks are those of every other run, and none of them depends on JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings import current_batch_context
from monolith.tpu._traced_model import TraceableTask, form_of
from monolith.train import num_examples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    from monolith.tpu._traced_model import BatchForm, Outputs
    from monolith.tpu.devices import Devices
    from monolith.tpu.torchax_shim import Backend
    from monolith.train import Mode, Spec, Task

_NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32}
_INT32 = torch.iinfo(torch.int32)


def array_of(tensor: Tensor, backend: Backend) -> Any:
    """Returns a host array with the values of a tensor; 64 bits become 32."""
    values = tensor.detach().cpu()
    values = values.to(_NARROWED.get(values.dtype, values.dtype)).contiguous()
    if values.dtype == torch.bfloat16:  # numpy has no bfloat16
        return backend.env.t2j_copy(values)
    return values.numpy()


def tensor_of(array: Any, backend: Backend) -> Tensor:
    """Copies an array of JAX to a new, writable tensor."""
    if array.dtype == backend.jax.numpy.bfloat16:
        copied: Tensor = backend.env.j2t_copy(array).clone()
        return copied
    return torch.from_numpy(np.array(array))


def require_fitting(name: str, tensor: Tensor) -> None:
    """Refuses integers that do not fit into 32 bits."""
    if tensor.dtype != torch.int64 or tensor.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(tensor))
    if low < _INT32.min or high > _INT32.max:
        raise InvalidArgumentError(
            f"column {name!r}: JAX computes with integers of 32 bits, got values from {low} to {high}; pass ids through"
            " slots of the embeddings, and make other numbers smaller, or floats, in input_fn"
        )


@dataclass(slots=True, eq=False)
class CompiledCall:
    """A function compiled for batches of one form."""

    columns: list[str]
    """Input columns: those that the outputs depend on."""
    rows: list[str]
    """The embeddings whose rows enter."""
    learned: dict[str, list[str]]
    """The ``weights`` and ``rows`` that get a gradient: the loss depends on them, and they may learn."""
    run: Callable[..., Any]
    """Called with trainable and other inputs; returns ((loss, (outputs, changed buffers)), gradients or None)."""
    outputs: Outputs | None = None
    """Structure of its outputs; set when it was traced."""


def compile_call(model: TraceableTask, form: BatchForm, num_rows: int, mode: Mode, backend: Backend) -> CompiledCall:
    """Traces the model once to see what its outputs depend on.

    A weight that the loss does not depend on gets no gradient, as in torch, where it would be None: an optimizer leaves
    it alone. Ids, which only embeddings use, do not enter, so that they may be of any size.
    """
    jax = backend.jax
    shapes = _shapes(model, form, num_rows, backend)
    traced = jax.make_jaxpr(lambda inputs: model.compute(inputs, form, num_rows, mode)[1:])(shapes)
    tree = jax.tree_util.tree_structure(shapes)
    outputs = range(len(traced.jaxpr.outvars))
    used, by_loss = (tree.unflatten(reached_inputs(traced, chosen)) for chosen in (outputs, outputs[:1]))
    is_training = mode == "train"
    call = CompiledCall(
        columns=[name for name, is_used in used["columns"].items() if is_used],
        rows=[name for name, is_used in used["rows"].items() if is_used],
        learned={
            "weights": [
                name for name, weight in model.weights.items()
                if is_training and weight.requires_grad and by_loss["weights"][name]
            ],
            "rows": [name for name, is_used in by_loss["rows"].items() if is_training and is_used],
        },
        run=_untraced,
    )  # fmt: skip
    left_out = {name: shape for name, shape in shapes["columns"].items() if name not in call.columns}
    left_rows = {name: shape for name, shape in shapes["rows"].items() if name not in call.rows}

    def compute(learned: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
        inputs = {kind: {**fixed[kind], **learned.get(kind, {})} for kind in fixed}
        for kind, unused in (("columns", left_out), ("rows", left_rows)):
            inputs[kind] |= {name: jax.numpy.zeros(shape.shape, shape.dtype) for name, shape in unused.items()}
        call.outputs, loss, arrays, buffers = model.compute(inputs, form, num_rows, mode)
        return loss, (arrays, buffers)

    if any(call.learned.values()):
        call.run = jax.jit(jax.value_and_grad(compute, has_aux=True))
    else:
        call.run = jax.jit(lambda learned, fixed: (compute(learned, fixed), None))
    return call


def _untraced(*_: Any) -> Any:
    raise AssertionError("a call is compiled before it runs")


def _shapes(model: TraceableTask, form: BatchForm, num_rows: int, backend: Backend) -> dict[str, dict[str, Any]]:
    """Returns the shapes of all possible inputs."""

    def shape_of(tensor: torch.Tensor) -> Any:
        array = array_of(tensor[:0] if tensor.ndim else tensor, backend)
        return backend.jax.ShapeDtypeStruct(tuple(tensor.shape), array.dtype)

    columns = {name: kind for name, kind in form.items() if not isinstance(kind, str)}
    rows = {
        name: sum(placed.width for placed in embeddings.placed.values())
        for name, embeddings in model.embeddings.items()
        if all(slot in form for slot in embeddings.slots)
    }
    return {
        "weights": {name: shape_of(weight) for name, weight in model.weights.items()},
        "buffers": {name: shape_of(buffer) for name, buffer in model.buffers.items()},
        "rows": {
            name: backend.jax.ShapeDtypeStruct((num_rows, width), np.dtype(np.float32)) for name, width in rows.items()
        },
        "columns": {name: shape_of(torch.empty(shape, dtype=dtype)) for name, (shape, dtype) in columns.items()},
        "draws": {"of_step": backend.jax.ShapeDtypeStruct((2,), np.dtype(np.uint32))},
    }


def reached_inputs(traced: Any, outputs: Iterable[int]) -> list[bool]:
    """Returns for each input, in order, whether one of the given outputs depends on it.

    Args:
        traced: A closed jaxpr, as ``jax.make_jaxpr`` makes it.
        outputs: Numbers of the outputs that count.
    """
    jaxpr = traced.jaxpr
    needed = {jaxpr.outvars[number] for number in outputs if _is_variable(jaxpr.outvars[number])}
    for equation in reversed(jaxpr.eqns):
        if any(variable in needed for variable in equation.outvars):
            needed.update(variable for variable in equation.invars if _is_variable(variable))
    return [variable in needed for variable in jaxpr.invars]


def _is_variable(atom: Any) -> bool:
    """Returns whether an atom is a variable; it may also be a literal."""
    return not hasattr(atom, "val")


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
        return None, None, *(gradient if factor == 1 else gradient * factor for gradient in ctx.gradients)


class CompiledModel:
    """Runs the model of a task by JAX. Only the training thread may use it.

    One function is compiled for each mode and form of a batch (columns, shapes, types); a last batch that is smaller
    compiles once more.
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
        traced = TraceableTask(self._task, model, self._backend)
        form = (
            [(name, weight.shape, weight.dtype, weight.requires_grad) for name, weight in traced.weights.items()],
            [(name, buffer.shape, buffer.dtype) for name, buffer in traced.buffers.items()],
            str(model),
        )
        if form != self._form:
            self._calls.clear()
        self._traced, self._form = traced, form

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
        weights = {name: array_of(weight, self._backend) for name, weight in self._traced.weights.items()}
        weights = self._devices.put(weights)
        placed = {name: self._devices.put_batch(array_of(value, self._backend)) for name, value in rows.items()}
        columns = {name: array_of(features[name], self._backend) for name in call.columns}
        buffers = {name: array_of(buffer, self._backend) for name, buffer in self._traced.buffers.items()}
        both = {"weights": weights, "rows": placed}
        learned = {kind: {name: both[kind][name] for name in names} for kind, names in call.learned.items()}
        fixed = {kind: {n: value for n, value in of.items() if n not in learned[kind]} for kind, of in both.items()}
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
        host_gradients = [tensor_of(gradients[kind][name], self._backend) for kind, name in learned]
        inputs = [both[kind][name] for kind, name in learned]
        known: Tensor = _KnownGradients.apply(value, host_gradients, *inputs)  # type: ignore[no-untyped-call]
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
