"""A task's model as a pure function: weights, buffers, rows and columns in; loss, predictions and new buffers out.

Columns of a batch that are tensors are inputs of the function, all others stay on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from monolith.nn import Embeddings
from monolith.nn.embeddings import EmbeddingOutputs, RowAnchor
from monolith.tpu.torchax_shim import own_backward_refused
from monolith.train import Spec

if TYPE_CHECKING:
    from monolith.tpu.torchax_shim import Backend
    from monolith.train import Mode, Task

BatchForm: TypeAlias = dict[str, tuple[torch.Size, torch.dtype] | str]
"""Column -> shape and type of a tensor, or what else the column is, such as ``Ragged``."""


class HostColumn:
    """Placeholder of a column that cannot be an input of a compiled step: only embeddings on the host may use it."""

    __slots__ = ("_kind", "_name")

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # protocols of Python take an AttributeError for a no
            raise AttributeError(attribute)
        raise FailedPreconditionError(
            f"column {self._name!r}: a {self._kind} cannot enter a compiled step, as its size changes from batch to"
            f" batch; model_fn read its {attribute!r}. Give it to a slot of the embeddings (FirstN keeps the"
            " places of a list), or let input_fn make it a tensor"
        )


class TracedFeatures(Mapping[str, Any]):
    """The features of a batch, with tensors of JAX in the place of the columns that are tensors."""

    __slots__ = ("_columns", "num_rows")

    def __init__(self, columns: Mapping[str, Any], num_rows: int) -> None:
        self._columns = dict(columns)
        self.num_rows = num_rows

    def __getitem__(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"batch has no column {name!r}; it has {', '.join(self._columns) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def is_looked_up_by(self, embeddings: Embeddings, batch: object) -> bool:
        """Returns whether `batch` has the unchanged columns of these features, for all slots of a module."""
        return batch is self or (
            isinstance(batch, Mapping)
            and all(name in self and batch.get(name) is self._columns[name] for name in embeddings.slots)
        )


def form_of(features: object) -> BatchForm:
    """Returns the form of a batch that a compiled step depends on."""
    if not isinstance(features, Mapping):
        raise InvalidArgumentError(
            f"tpu: a batch must be a mapping of columns by name, got {type(features).__name__}; let input_fn return"
            " dictionaries or Batches"
        )
    return {
        name: (values.shape, values.dtype) if isinstance(values, Tensor) else type(values).__name__
        for name, values in features.items()
    }


def looked_up_from(embeddings: Embeddings, buffer: Tensor) -> EmbeddingOutputs:
    """Returns the result of a lookup, from the already looked up outputs [B, W] of all slots."""
    outputs = {}
    for name, placed in embeddings.placed.items():
        part = buffer.narrow(1, placed.column, placed.width)
        outputs[name] = part.reshape(placed.combiner.shape(buffer.shape[0], placed.dim))
    return EmbeddingOutputs(outputs, buffer)


class _CalledTask(nn.Module):
    """The model as a module whose forward is the task's `model_fn`, for ``torch.func.functional_call``."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self._task = task
        self.model = model

    def forward(self, features: Any, mode: Mode) -> Spec:
        return self._task.model_fn(features, mode)


class Outputs:
    """The values of a `Spec` that the compiled step returns, and how the spec is rebuilt from them."""

    def __init__(self, spec: Spec, columns: Mapping[str, Tensor]) -> None:
        names = {id(tensor): name for name, tensor in columns.items()}
        leaves, self._tree = _pytree.tree_flatten((spec.predictions, spec.label))
        self._columns = {place: names[id(leaf)] for place, leaf in enumerate(leaves) if id(leaf) in names}
        self._places = [
            place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and place not in self._columns
        ]
        self.tensors: list[Tensor] = [leaves[place] for place in self._places]
        """Values that the compiled step returns."""
        self._values = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def spec(self, loss: Tensor | None, tensors: list[Tensor], features: Mapping[str, Any]) -> Spec:
        """Returns the spec of a batch; unchanged columns are those of the batch."""
        leaves = list(self._values)
        for place, name in self._columns.items():
            leaves[place] = features[name]
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        predictions, label = _pytree.tree_unflatten(leaves, self._tree)
        return Spec(loss, predictions=predictions, label=label)


class TraceableTask:
    """A task and its model, ready to be traced by JAX."""

    def __init__(self, task: Task, model: nn.Module, backend: Backend) -> None:
        self._task = task
        self._backend = backend
        self._called = _CalledTask(task, model)
        modules = dict(self._called.named_modules())
        self.embeddings = {name: module for name, module in modules.items() if isinstance(module, Embeddings)}
        """Embeddings by their names in the model."""
        parameters = self._called.named_parameters()
        self.weights = {name: parameter for name, parameter in parameters if not isinstance(parameter, RowAnchor)}
        """Dense parameters by name."""
        of_rows = tuple(f"{name}." for name in self.embeddings)
        buffers = self._called.named_buffers()
        self.buffers = {name: buffer for name, buffer in buffers if not name.startswith(of_rows)}
        """Buffers by name."""
        for name, weight in self.weights.items():
            if weight.dtype == torch.float64:
                raise FailedPreconditionError(
                    f"task {task.p.name}: weight {name.removeprefix('model.')!r} is float64, which JAX computes as"
                    " float32; make it .float()"
                )

    def compute(
        self, inputs: Mapping[str, Mapping[str, Any]], form: BatchForm, num_rows: int, mode: Mode
    ) -> tuple[Outputs, Any, list[Any], dict[str, Any]]:
        """Computes loss, outputs and changed buffers as arrays of JAX, while JAX traces.

        Args:
            inputs: ``weights``, ``buffers``, ``rows`` and ``columns`` by name, and ``draws``: arrays of JAX.
            form: Form of the batch that it is traced for.
            num_rows: Number of its examples.
            mode: Mode of the task.
        """
        env, last = self._backend.env, LastOperation()
        tensors = {kind: env.j2t_iso(dict(inputs[kind])) for kind in ("weights", "buffers", "rows", "columns")}
        before = {name: buffer.jax() for name, buffer in tensors["buffers"].items()}
        columns = {name: HostColumn(name, kind) for name, kind in form.items() if isinstance(kind, str)}
        features = TracedFeatures({name: {**tensors["columns"], **columns}[name] for name in form}, num_rows)
        state = {**tensors["weights"], **tensors["buffers"]}
        with (
            explained(self._backend, last, str(self._task.p.name)),
            own_backward_refused(str(self._task.p.name)),
            self._rows_from(tensors["rows"], features),
            self._surroundings(inputs["draws"]["of_step"]),
            last,
        ):
            spec = torch.func.functional_call(self._called, state, (features, mode))
            outputs = Outputs(self._checked(spec), tensors["columns"])
            arrays = [self._array(tensor) for tensor in outputs.tensors]
            loss = None if spec.loss is None else self._array(spec.loss)
        after = {name: buffer.jax() for name, buffer in tensors["buffers"].items()}
        return outputs, loss, arrays, {name: value for name, value in after.items() if value is not before[name]}

    def _array(self, tensor: Tensor) -> Any:
        """Converts a tensor of the step, or a constant, to an array of JAX."""
        return self._backend.env.to_xla(tensor).jax()

    def _checked(self, spec: object) -> Spec:
        name = f"{type(self._task).__name__}.model_fn"
        if not isinstance(spec, Spec):
            raise TypeError(f"{name}: expected Spec(loss, predictions, label), got {type(spec).__name__}")
        if spec.train_op is not None:
            raise FailedPreconditionError(
                f"{name}: Spec(train_op=...) cannot be compiled; give Spec(loss=...), whose gradients are applied"
            )
        return spec

    @contextlib.contextmanager
    def _surroundings(self, draws: Any) -> Iterator[None]:
        """Enters the environment of torchax, with the random state of this step; new tensors are traced, too."""
        env, random = self._backend.env, self._backend.jax.random
        key = random.fold_in(random.key(draws[0]), draws[1])
        fast_attention = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # its operations have no counterpart in JAX
        try:
            with env, env.override_property(prng=key), torch.device("jax"):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_attention)

    @contextlib.contextmanager
    def _rows_from(self, rows: Mapping[str, Tensor], features: TracedFeatures) -> Iterator[None]:
        """Makes embeddings return the rows that were looked up on the host."""

        def reading(name: str, embeddings: Embeddings) -> Any:
            def forward(batch: object, **options: object) -> Any:
                if options or name not in rows or not features.is_looked_up_by(embeddings, batch):
                    raise FailedPreconditionError(
                        f"task {self._task.p.name}: rows of {name.removeprefix('model.')!r} are looked up on the host"
                        " before the compiled step, for the columns of the batch as they were read; call it with the"
                        " features of model_fn, with a column for each of its slots"
                        f" ({', '.join(embeddings.slots)}), and without time or stamp"
                    )
                return looked_up_from(embeddings, rows[name])

            return forward

        for name, embeddings in self.embeddings.items():
            embeddings.forward = reading(name, embeddings)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for embeddings in self.embeddings.values():
                del embeddings.forward


class LastOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Records the last operation of torch, as errors of custom operations do not name it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # see above
        self.name = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records the operation and runs it."""
        self.name = func.name() if hasattr(func, "name") else str(func)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def explained(backend: Backend, last: LastOperation, name: str) -> Iterator[None]:
    """Converts errors of torchax and JAX to ours; `name` is that of the task."""
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
