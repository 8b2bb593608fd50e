"""Compilation of a model for the form of a batch; only values that the outputs depend on are inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.tpu._arrays import array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from monolith.tpu._traced_features import BatchForm
    from monolith.tpu._traced_model import Outputs, TraceableTask
    from monolith.tpu.torchax_shim import Backend
    from monolith.train.task import Mode

__all__ = ["CompiledCall", "compile_call"]


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
        "weights": {name: shape_of(each) for name, each in model.weights.items()},
        "buffers": {name: shape_of(each) for name, each in model.buffers.items()},
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
