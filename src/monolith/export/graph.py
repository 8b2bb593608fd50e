"""Traces a model to a graph: outputs of embeddings and columns of numbers in, predictions out.

The model runs once unchanged, to record the lookups of its embeddings; then `torch.export` traces it with those outputs
as inputs, for any number of examples. If the model does the same as in an earlier call, that graph is reused. An error
names the line of the user's code that prevents the export.
"""

from __future__ import annotations

import inspect
import linecache
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from monolith.data import Batch
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from monolith.export.allowed_operations import is_allowed_operation
from monolith.export.graph_file import graph_from_bytes, graph_to_bytes
from monolith.export.graph_limits import GraphInput, InputShape, input_shape, require_bounded_graph
from monolith.export.layout_spec import DenseSpec, FeatureSpec
from monolith.export.recording import CallLog, LookupRecorder, WatchedBatch, log_calls
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph

    from monolith.nn import Embeddings

_LONGEST_REASON = 400
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def refusal(
    error: BaseException, model_fn: Callable[..., object], *, subject: str, trace: str | None = None
) -> InvalidArgumentError:
    """Returns the error to raise: the innermost line of the user's code, and the beginning of torch's message.

    `trace` is the stack trace of an operation, as recorded by torch; None: that of the error.
    """
    path, line = _line_in(trace or "") or _line_of(error) or _definition(model_fn)
    source = linecache.getline(path, line).strip()
    reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
    return InvalidArgumentError(
        f"{subject}: the model cannot be exported because of {path}:{line}"
        f"{f' ({source})' if source else ''}: {type(error).__name__}: {reason}; write it with torch operations on"
        " batches, or serve the task with its code: monolith serve --task"
    )


def _line_of(error: BaseException) -> tuple[str, int] | None:
    for link in _chain(error):
        own = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(link.__traceback__)
            if _is_users(frame.f_code.co_filename)
        ]
        if own:
            return own[-1]
    return None


def _line_in(trace: str) -> tuple[str, int] | None:
    own = [(frame[1], int(frame[2])) for frame in _FRAME.finditer(trace) if _is_users(frame[1])]
    return own[-1] if own else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _is_users(path: str) -> bool:
    return not path.startswith((*_FOREIGN, "<")) and "/contextlib.py" not in path


def _definition(model_fn: Callable[..., object]) -> tuple[str, int]:
    code = getattr(inspect.unwrap(model_fn), "__code__", None)
    return ("<unknown>", 0) if code is None else (code.co_filename, code.co_firstlineno)


SINGLE_OUTPUT = "predictions"
"""Name of a single unnamed prediction."""
_MODEL = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A model and its call."""

    model: nn.Module
    embeddings: Mapping[str, Embeddings]
    stores: Mapping[str, object]
    model_fn: Callable[..., object]
    """Function of the user, for messages."""
    call: Callable[[Any], object]
    """Batch -> predictions."""


class _Origin(NamedTuple):
    """Origin of a graph, which identifies it for reuse."""

    outputs: tuple[str, ...]
    num_rows: int
    """Number of rows of the example."""
    log: CallLog | None = None
    """Log of the calls; None: inconclusive, so that the graph is not reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """The graph of a model, independent of the values of its weights."""

    text: bytes
    """Contents of the graph file."""
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Tensor]
    origin: _Origin
    """A model with the same origin has this graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """A graph with the weights and the example of a model."""

    graph: ModelGraph
    features: tuple[FeatureSpec, ...]
    weights: dict[str, Tensor]
    example: Mapping[str, Tensor | Ragged]
    """Column -> values that the model read, of features and of numbers."""
    graph_inputs: dict[str, Tensor]
    """``kind:name`` -> input of the graph for the example."""
    expected: dict[str, Tensor]
    """Predictions of the model for the example."""

    def dense_columns(self) -> list[DenseSpec]:
        """Returns the columns of numbers that the graph reads."""
        read = (place.name for place in self.graph.inputs if place.kind in {"column", "values", "row_splits"})
        specs = []
        for name in dict.fromkeys(read):
            values = self.example[name]
            dtype = str(values.dtype).removeprefix("torch.")
            width = None if isinstance(values, Ragged) else math.prod(values.shape[1:])
            specs.append(DenseSpec(name=name, dtype=dtype, width=width))
        return specs

    def example_tensors(self) -> dict[str, Tensor]:
        """Returns the example in its stored form: columns of the request, inputs of the graph, outputs."""
        tensors = {f"graph/{key}": tensor for key, tensor in self.graph_inputs.items()}
        tensors |= {f"output/{name}": tensor for name, tensor in self.expected.items()}
        for name, values in self.example.items():
            if isinstance(values, Tensor):
                tensors[f"column/{name}"] = values
            else:
                tensors |= {f"values/{name}": values.flat_values, f"splits/{name}": values.row_splits}
        return tensors


def trace(
    model: ModelCall,
    columns: Mapping[str, Tensor | Ragged],
    *,
    name: str,
    graphs: MutableMapping[str, ModelGraph] | None = None,
) -> TracedModel:
    """Traces a model, in evaluation mode on the CPU, on a batch.

    `graphs` has the last graph of each signature, which is reused if the model does the same; None: no reuse.
    """
    if torch.__version__.startswith("2.4."):
        why = "refuses the parameters of embeddings; install a newer torch"
        raise FailedPreconditionError(f"export: torch {torch.__version__} {why}")
    subject = f"signature {name!r}"
    recorder = LookupRecorder(model.embeddings, model.stores)
    columns = _two_rows(columns)
    batch = WatchedBatch(columns, num_rows=Batch(columns).num_rows)
    expected = _look(model, recorder, batch, subject=subject)
    inputs = _example_inputs(recorder.outputs, batch)
    wrapper = _Wrapper(model, recorder, set(columns))
    weights = _weights(wrapper)
    log = None if graphs is None else log_calls(wrapper, inputs, weights)
    origin = _Origin(tuple(expected), batch.num_rows, log)
    graph = None if graphs is None or log is None else graphs.get(name)
    if graph is None or graph.origin != origin:
        graph = _followed(wrapper, inputs, origin, shape_of=_shapes(recorder, columns), subject=subject)
    if graphs is not None:
        graphs[name] = graph
    read = {place.name for place in graph.inputs}
    features = tuple(feature for feature in recorder.features.values() if feature.name in read)
    names = {part.source for part in features} | {part.name for part in graph.inputs if part.kind != "rows"}
    return TracedModel(
        graph=graph,
        features=features,
        weights={place.name: weights[_MODEL + place.name].detach() for place in graph.inputs if place.kind == "weight"},
        graph_inputs={key: inputs[key] for place in graph.inputs if (key := f"{place.kind}:{place.name}") in inputs},
        example={name: values for name, values in columns.items() if name in names},
        expected=expected,
    )


def named_predictions(predictions: object, *, subject: str) -> dict[str, Tensor]:
    """Returns predictions by name, in the order of the names; each must be a tensor."""
    if predictions is None:
        raise InvalidArgumentError(
            f"{subject}: model_fn gives no predictions in mode 'predict'; return Spec(predictions=...)"
        )
    named: Mapping[Any, Any] = predictions if isinstance(predictions, Mapping) else {SINGLE_OUTPUT: predictions}
    for name, values in named.items():
        if not isinstance(values, Tensor):
            raise InvalidArgumentError(
                f"{subject}: prediction {name!r} must be a tensor, got {type(values).__name__}; an export gives tensors"
            )
    return {str(name): named[name] for name in sorted(named, key=str)}


class _Wrapper(nn.Module):
    """The model as a function of the outputs of its embeddings."""

    def __init__(self, model: ModelCall, recorder: LookupRecorder, columns: set[str]) -> None:
        super().__init__()
        self.model = model.model
        self.model_fn = model.model_fn
        self._call = model.call
        self._recorder = recorder
        self._columns = columns
        self.eval()

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        places = [(GraphInput(*key.split(":", 1)), value) for key, value in inputs.items()]  # type: ignore[arg-type]
        parts = dict(places)
        columns: dict[str, Any] = {place.name: value for place, value in places if place.kind == "column"}
        for place, value in places:
            if place.kind == "values":
                splits = parts[GraphInput("row_splits", place.name)]
                columns[place.name] = Ragged(value, splits, validate=False)
        rows = {place.name: value for place, value in places if place.kind == "rows"}
        for name in self._columns - columns.keys():
            columns[name] = object()  # not read; only its identity matters
        batch = WatchedBatch(columns, num_rows=next(iter(inputs.values())).shape[0])
        with self._recorder.replaying(batch, rows):
            predictions = self._call(batch)
        return tuple(named_predictions(predictions, subject="export").values())


def _weights(wrapper: _Wrapper) -> dict[str, Tensor]:
    """Returns parameters and persistent buffers; other buffers are constants of a graph."""
    tensors: dict[str, Tensor] = dict(wrapper.named_parameters(remove_duplicate=False))
    for prefix, module in wrapper.named_modules(remove_duplicate=False):
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if name not in module._non_persistent_buffers_set:  # noqa: SLF001 - torch has no public accessor
                tensors[f"{prefix}.{name}"] = buffer
    return tensors


def _shapes(recorder: LookupRecorder, columns: Mapping[str, Tensor | Ragged]) -> Callable[[GraphInput], InputShape]:
    """Returns a function with the shapes of the inputs of a graph in requests."""
    features = {feature.name: feature.shape for feature in recorder.features.values()}
    numbers = {
        name: (values.dtype, () if isinstance(values, Ragged) else tuple(values.shape[1:]))
        for name, values in columns.items()
    }
    return lambda place: input_shape(place, {}, features, numbers)


def _followed(
    wrapper: _Wrapper,
    inputs: dict[str, Tensor],
    origin: _Origin,
    *,
    shape_of: Callable[[GraphInput], InputShape],
    subject: str,
) -> ModelGraph:
    """Traces a model with `torch.export`; a graph that a server would reject is rejected here."""
    try:
        shapes = (_dynamic(inputs, origin.num_rows),)
        with torch.no_grad():
            program = torch.export.export(wrapper, (inputs,), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise refusal(error, wrapper.model_fn, subject=subject) from error
    places = _prune(program, list(inputs))
    _require_unchanged_weights(program.graph, places, subject=subject)
    _require_allowed(program.graph, wrapper.model_fn, subject=subject)
    text = graph_to_bytes(program, places, origin.outputs)
    tensors = {("constant", name): tensor for name, tensor in program.constants.items()}
    tensors |= {("weight", name.removeprefix(_MODEL)): tensor for name, tensor in program.state_dict.items()}
    arguments = [tensors[place] if place in tensors else shape_of(place) for place in places]
    try:
        loaded = graph_from_bytes(text, origin=subject)  # never write an unreadable graph
        require_bounded_graph(loaded.module, arguments, origin=subject)
    except DataLossError as error:
        raise InvalidArgumentError(
            f"{error.message}; no server would load it: change the model, or serve the task with its code: monolith"
            " serve --task"
        ) from error
    return ModelGraph(
        text=text,
        inputs=tuple(places),
        outputs=origin.outputs,
        constants={place.name: program.constants[place.name] for place in places if place.kind == "constant"},
        origin=origin,
    )


def _require_allowed(graph: Graph, model_fn: Callable[..., object], *, subject: str) -> None:
    """Rejects an operation that servers reject, with the line that calls it."""
    for node in graph.nodes:
        target = node.target
        is_operation = node.op == "call_function" and isinstance(target, OpOverload)
        if is_operation and not is_allowed_operation(f"torch.ops.{target}"):
            name = str(target).rpartition(".")[0]
            reason = UnimplementedError(
                f"operation {name} is not in the list of operations that an export may have; if you trust it, call"
                f" monolith.serving.allow_operations({name!r}) here, and serve with --allow_operation {name}"
            )
            raise refusal(reason, model_fn, subject=subject, trace=node.stack_trace) from None


def _look(model: ModelCall, recorder: LookupRecorder, batch: WatchedBatch, *, subject: str) -> dict[str, Tensor]:
    try:
        with torch.no_grad(), recorder.recording(batch):
            return named_predictions(model.call(batch), subject=subject)
    except InvalidArgumentError as error:
        if error.message.startswith(subject):
            raise
        raise refusal(error, model.model_fn, subject=subject) from error
    except KeyError as error:
        raise InvalidArgumentError(f"{subject}: the model cannot answer from {', '.join(batch)}: {error}") from error


def _example_inputs(rows: Mapping[str, Tensor], batch: WatchedBatch) -> dict[str, Tensor]:
    inputs = {f"rows:{name}": values.clone() for name, values in rows.items()}
    for name, values in batch.read.items():
        if isinstance(values, Tensor):
            inputs[f"column:{name}"] = values
        elif isinstance(values, Ragged) and isinstance(values.values, Tensor):
            inputs[f"values:{name}"] = values.values
            inputs[f"row_splits:{name}"] = values.row_splits
    if not inputs:
        raise InvalidArgumentError("export: the model reads no column; it must read at least one")
    return inputs


def _dynamic(inputs: Mapping[str, Tensor], num_rows: int) -> dict[str, dict[int, Any]]:
    batch = torch.export.Dim("batch")
    shapes: dict[str, dict[int, Any]] = {}
    for number, (key, value) in enumerate(inputs.items()):
        kind = key.split(":", 1)[0]
        if kind == "values":
            shapes[key] = {0: torch.export.Dim(f"values{number}")}
        elif kind == "row_splits":
            shapes[key] = {0: batch + 1}
        else:
            shapes[key] = {0: batch} if value.ndim and value.shape[0] == num_rows else {}
    return shapes


def _two_rows(columns: Mapping[str, Tensor | Ragged]) -> Mapping[str, Tensor | Ragged]:
    """Repeats an example of one row, since torch would specialize a length of 1."""
    if any((values.shape[0] if isinstance(values, Tensor) else values.num_rows) != 1 for values in columns.values()):
        return columns
    return {
        name: torch.cat([values, values]) if isinstance(values, Tensor) else Ragged.concat([values, values])
        for name, values in columns.items()
    }


def _prune(program: ExportedProgram, keys: Sequence[str]) -> list[GraphInput]:
    """Removes unused inputs; returns the others."""
    from torch.export.graph_signature import InputKind as Kind  # noqa: PLC0415 - private names of torch

    graph = program.graph
    graph.eliminate_dead_code()
    own = iter(keys)
    places = []
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind is Kind.USER_INPUT:
            place = GraphInput(*next(own).split(":", 1))  # type: ignore[arg-type]
        elif spec.target in program.constants:
            place = GraphInput("constant", str(spec.target))
        else:
            place = GraphInput("weight", str(spec.target).removeprefix(_MODEL))
        if node.users:
            places.append(place)
        else:
            graph.erase_node(node)
    return places


def _require_unchanged_weights(graph: Graph, places: Sequence[GraphInput], *, subject: str) -> None:
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    names = dict(zip(nodes, places, strict=True))
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and value in names:
                raise InvalidArgumentError(
                    f"{subject}: the model changes {names[value].name!r} in place while it predicts"
                    f" ({node.target}); a served model only reads"
                )
