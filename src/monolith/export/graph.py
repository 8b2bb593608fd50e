"""Makes a graph of a model: outputs of embeddings and columns of numbers go in, predictions come out.

The model runs once as it is, to see what it asks of its embeddings; then `torch.export` follows it with those outputs
as inputs, for any number of examples; then the graph is held against the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from monolith.data.batch import Batch
from monolith.errors import InvalidArgumentError
from monolith.export.asked_rows import AskedRows, WatchedBatch
from monolith.export.layout_spec import DenseSpec
from monolith.export.refused_export import refusal
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.export import ExportedProgram
    from torch.fx import Graph

    from monolith.export.layout_spec import FeatureSpec
    from monolith.nn import Embeddings

__all__ = ["GraphInput", "ModelCall", "TracedModel", "trace"]

SINGLE_OUTPUT = "predictions"
"""Name of the prediction of a model that names none."""
_MODEL = "model."

InputKind = Literal["weight", "constant", "rows", "column", "values", "row_splits", "joined"]


class GraphInput(NamedTuple):
    """What a graph takes at one place."""

    kind: InputKind
    """``rows``: the output of a feature. ``values``, ``row_splits``: the parts of a ragged column. ``joined``: several
    features side by side; only a graph in memory has such inputs."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A model and how it is called."""

    model: nn.Module
    embeddings: Mapping[str, Embeddings]
    stores: Mapping[str, object]
    model_fn: Callable[..., object]
    """What the user wrote, for messages."""
    call: Callable[[Any], object]
    """Batch -> predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """A graph of torch, and what its places mean."""

    graph: Graph
    program: ExportedProgram
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    features: tuple[FeatureSpec, ...]
    weights: dict[str, Tensor]
    constants: dict[str, Tensor]
    example: Mapping[str, Tensor | Ragged]
    """Column -> the values that were asked for: of features, and of numbers."""
    graph_inputs: dict[str, Tensor]
    """``kind:name`` -> what the graph takes for the example."""
    expected: dict[str, Tensor]
    """What the model makes of the example."""

    def dense_columns(self) -> list[DenseSpec]:
        """Columns of numbers that the graph reads."""
        names = dict.fromkeys(each.name for each in self.inputs if each.kind in {"column", "values", "row_splits"})
        found = []
        for name in names:
            values = self.example[name]
            dtype = str(values.dtype).removeprefix("torch.")
            width = None if isinstance(values, Ragged) else math.prod(values.shape[1:])
            found.append(DenseSpec(name=name, dtype=dtype, width=width))
        return found

    def example_tensors(self) -> dict[str, Tensor]:
        """The example as it is stored: columns of the request, inputs of the graph, outputs."""
        found = {f"graph/{key}": tensor for key, tensor in self.graph_inputs.items()}
        found |= {f"output/{name}": tensor for name, tensor in self.expected.items()}
        for name, values in self.example.items():
            if isinstance(values, Tensor):
                found[f"column/{name}"] = values
            else:
                found |= {f"values/{name}": values.flat_values, f"splits/{name}": values.row_splits}
        return found


def trace(model: ModelCall, columns: Mapping[str, Tensor | Ragged], *, subject: str) -> TracedModel:
    """Follows a model through a batch.

    Args:
        model: In evaluation mode, on the CPU.
        columns: An example of every column that it may read.
        subject: For messages.

    Raises:
        InvalidArgumentError: the model cannot be exported; names the line.
    """
    asked = AskedRows(model.embeddings, model.stores)
    columns = _two_rows(columns)
    batch = WatchedBatch(columns, num_rows=Batch(columns).num_rows)
    expected = _look(model, asked, batch, subject=subject)
    numbers = {name: values for name, values in batch.read.items() if isinstance(values, Tensor | Ragged)}
    inputs = _example_inputs(asked.outputs, numbers)
    wrapper = _Wrapper(model, asked, set(columns))
    try:
        with torch.no_grad():
            program = torch.export.export(
                wrapper, (inputs,), dynamic_shapes=(_dynamic(inputs, batch.num_rows),), strict=False
            )
    except Exception as error:
        raise refusal(error, model.model_fn, subject=subject) from error
    weights = {name.removeprefix(_MODEL): tensor.detach() for name, tensor in program.state_dict.items()}
    places = _prune(program, list(inputs))
    _require_unchanged_weights(program.graph, places, subject=subject)
    read = {place.name for place in places}
    features = tuple(each for each in asked.features.values() if each.name in read)
    wanted = {each.source for each in features} | {each.name for each in places if each.kind != "rows"}
    return TracedModel(
        graph=program.graph,
        program=program,
        inputs=tuple(places),
        outputs=tuple(sorted(expected)),
        features=features,
        weights={each.name: weights[each.name] for each in places if each.kind == "weight"},
        constants={each.name: program.constants[each.name] for each in places if each.kind == "constant"},
        graph_inputs={key: inputs[key] for each in places if (key := f"{each.kind}:{each.name}") in inputs},
        example={name: values for name, values in columns.items() if name in wanted},
        expected=expected,
    )


def named_predictions(predictions: object, *, subject: str) -> dict[str, Tensor]:
    """Predictions by name, in the order of the names.

    Raises:
        InvalidArgumentError: there are none, or other things than tensors.
    """
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

    def __init__(self, model: ModelCall, asked: AskedRows, columns: set[str]) -> None:
        super().__init__()
        self.model = model.model
        self._call = model.call
        self._asked = asked
        self._columns = columns
        self.eval()

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        given = [(GraphInput(*key.split(":", 1)), value) for key, value in inputs.items()]  # type: ignore[arg-type]
        parts = dict(given)
        columns: dict[str, Any] = {place.name: value for place, value in given if place.kind == "column"}
        for place, value in given:
            if place.kind == "values":
                splits = parts[GraphInput("row_splits", place.name)]
                columns[place.name] = Ragged(value, splits, validate=False)
        rows = {place.name: value for place, value in given if place.kind == "rows"}
        for name in self._columns - columns.keys():
            columns[name] = object()  # not read; that it is itself is all that counts
        batch = WatchedBatch(columns, num_rows=next(iter(inputs.values())).shape[0])
        with self._asked.replaying(batch, rows):
            predictions = self._call(batch)
        return tuple(named_predictions(predictions, subject="export").values())


def _look(model: ModelCall, asked: AskedRows, batch: WatchedBatch, *, subject: str) -> dict[str, Tensor]:
    try:
        with torch.no_grad(), asked.recording(batch):
            return named_predictions(model.call(batch), subject=subject)
    except InvalidArgumentError as error:
        if error.message.startswith(subject):
            raise
        raise refusal(error, model.model_fn, subject=subject) from error
    except KeyError as error:
        raise InvalidArgumentError(f"{subject}: the model cannot answer from {', '.join(batch)}: {error}") from error


def _example_inputs(rows: Mapping[str, Tensor], numbers: Mapping[str, Tensor | Ragged]) -> dict[str, Tensor]:
    inputs = {f"rows:{name}": values.clone() for name, values in rows.items()}
    for name, values in numbers.items():
        if isinstance(values, Tensor):
            inputs[f"column:{name}"] = values
        elif isinstance(values.values, Tensor):
            inputs[f"values:{name}"] = values.values
            inputs[f"row_splits:{name}"] = values.row_splits
    if not inputs:
        raise InvalidArgumentError("export: the model reads no column; there is nothing that a request could say")
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
    """An example of one row is taken twice: torch would keep a length of 1 for the only one."""
    if any((values.shape[0] if isinstance(values, Tensor) else values.num_rows) != 1 for values in columns.values()):
        return columns
    return {
        name: torch.cat([values, values]) if isinstance(values, Tensor) else Ragged.concat([values, values])
        for name, values in columns.items()
    }


def _prune(program: ExportedProgram, keys: Sequence[str]) -> list[GraphInput]:
    """Removes inputs that nothing uses; what is left."""
    from torch.export.graph_signature import InputKind as Kind  # noqa: PLC0415 - private names of torch stay here

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
