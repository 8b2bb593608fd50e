"""Errors of compiling a model, translated into what to change in the task."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from monolith.errors import FailedPreconditionError, UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.tpu.torchax_shim import Backend

__all__ = ["LastOperation", "explained"]


class LastOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Records the last operation of torch, as errors of custom operations do not name it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # see above
        self.name = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Remembers it and hands it on."""
        self.name = func.name() if hasattr(func, "name") else str(func)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def explained(backend: Backend, last: LastOperation, name: str) -> Iterator[None]:
    """Converts errors of torchax and JAX to ours; `name` is that of the task.

    Raises:
        UnimplementedError: an operation has no counterpart in JAX; names it.
        FailedPreconditionError: the model cannot be compiled, with the reason.
    """
    jax_errors = backend.jax.errors
    not_found = backend.torchax.tensor.OperatorNotFound
    try:
        yield
    except not_found as error:
        raise UnimplementedError(_no_lowering(backend, name, str(error).split(" has no lowering")[0])) from error
    except (jax_errors.ConcretizationTypeError, jax_errors.NonConcreteBooleanIndexError) as error:
        raise FailedPreconditionError(
            f"task {name}: model_fn needs the values of a tensor while it is compiled, where only shapes are known"
            f" ({_operation(last)}{str(error).splitlines()[0]}); avoid .item(), float(), if and masks that depend"
            " on values, use torch.where, or train with `monolith train`"
        ) from error
    except AssertionError as error:
        if "mixed math" in str(error):
            raise FailedPreconditionError(
                f"task {name}: {_operation(last)}a tensor of the host meets one of the compiled step; give the model"
                " what it computes with as a parameter, as a buffer (register_buffer) or as a column of the batch"
            ) from error
        if "torchax Tensors can only do math" in str(error):
            raise UnimplementedError(_no_lowering(backend, name, f"Operator with name {last.name}")) from error
        raise


def _no_lowering(backend: Backend, name: str, operation: str) -> str:
    operation = operation.removeprefix("Operator with name ")
    return (
        f"task {name}: its model uses the torch operation {operation!r}, which torchax {backend.torchax.__version__}"
        " cannot compile for JAX; write it with other operations, or train with `monolith train`"
    )


def _operation(last: LastOperation) -> str:
    return f"at {last.name}: " if last.name else ""
