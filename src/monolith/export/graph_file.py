"""A graph as JSON, in the format of torch's serializer; reading it neither unpickles nor runs anything.

A loaded graph is made faster with bitwise identical results. `torch.export` names operations of ATen, which are slower
to call than the torch functions in a model's code, and leaves redundant ones: a flatten of a flat tensor, and the
concatenation of outputs of embeddings, which training already has concatenated.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch._export.serde import schema as torch_schema
from torch._export.serde import serialize as serde
from torch._ops import OpOverload

from monolith.errors import DataLossError, FailedPreconditionError, OpError
from monolith.export.graph_check import require_plain_graph
from monolith.export.graph_limits import GraphInput, require_safe_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule, Node


class FeatureSlice(NamedTuple):
    """Floats [start, end) of the rows of a feature."""

    feature: str
    start: int
    end: int


class JoinedRows(NamedTuple):
    """An input that consists of several features."""

    form: Literal["concat", "stack"]
    """[B, sum of their widths], or [B, number of features, width]."""
    cuts: tuple[FeatureSlice, ...]


_OF_TORCH = (
    "abs add addmm amax amin batch_norm bmm cat clamp div exp flatten layer_norm log log1p log_softmax logsumexp matmul"
    " maximum mean minimum mm mul neg permute pow prod relu reshape rsqrt select sigmoid softmax sqrt square squeeze"
    " stack sub sum tanh transpose unsqueeze where"
)
_OF_NN = "gelu leaky_relu linear silu softplus"
_OF_TENSORS = "expand view"
DIRECT: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _OF_TORCH.split()},
    **{name: getattr(torch._C._nn, name) for name in _OF_NN.split()},  # noqa: SLF001 - used by `functional`
    **{name: getattr(torch.Tensor, name) for name in _OF_TENSORS.split()},
    "sym_size": torch.Tensor.size,
}
"""ATen operation -> the function that models call, with the same arguments and the same kernel."""


_FLATTEN: tuple[Any, ...] = (None, 0, -1)
_SLICE: tuple[Any, ...] = (None, 0, None, None, 1)
"""Default arguments of operations that a graph omits."""


def drop_idle(graph: Graph) -> None:
    """Removes operations that return their input."""
    for node in list(graph.nodes):
        if node.op == "call_function" and _is_idle(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def call_directly(graph: Graph) -> None:
    """Replaces ATen operations by the functions that models call. Must run last: other passes match ATen operations."""
    for node in graph.nodes:
        direct = DIRECT.get(_operation(node))
        if direct is not None and "out" not in node.kwargs:
            node.target = direct


def join_rows(graph: Graph, rows: Mapping[str, str]) -> dict[str, JoinedRows]:
    """Joins features that a graph concatenates to one input; returns the components of each new input by its name.

    `rows` has the feature of each input; inputs that become unused are removed.
    """
    joined: dict[str, JoinedRows] = {}
    placeholders: dict[JoinedRows, Node] = {}
    first = next(iter(graph.nodes))

    def input_of(parts: JoinedRows) -> Node:
        if parts not in placeholders:
            name = f"joined_rows_{len(joined)}"
            with graph.inserting_before(first):
                placeholders[parts] = graph.placeholder(name)
            joined[placeholders[parts].name] = parts
        return placeholders[parts]

    for node in [] if _writes(graph) else list(graph.nodes):
        if _operation(node) == "stack" and _dim_of(node) == 1:
            cuts = [_cut(part, rows) for part in node.args[0]]
            known = tuple(cut for cut in cuts if cut is not None)
            if len(known) == len(cuts):
                _replace(node, input_of(JoinedRows("stack", known)))
        elif _operation(node) == "cat" and _dim_of(node) in {1, -1}:
            _join_runs(node, rows, input_of)
    graph.eliminate_dead_code()
    if placeholders:
        _forget_unread(graph, rows, next(iter(placeholders.values())))
    return joined


def _join_runs(node: Node, rows: Mapping[str, str], input_of: Callable[[JoinedRows], Node]) -> None:
    """Joins adjacent arguments of a cat."""
    arguments: list[Node] = []
    run: list[tuple[Node, FeatureSlice]] = []

    def end_run() -> None:
        if len(run) > 1:
            arguments.append(input_of(JoinedRows("concat", tuple(cut for _, cut in run))))
        else:
            arguments.extend(argument for argument, _ in run)
        run.clear()

    tensors: Sequence[Node] = node.args[0]  # type: ignore[assignment]  # a list of tensors
    for tensor in tensors:
        cut = _cut(tensor, rows)
        if cut is None:
            end_run()
            arguments.append(tensor)
        else:
            run.append((tensor, cut))
    end_run()
    if len(arguments) == 1 and len(tensors) > 1:
        _replace(node, arguments[0])
    else:
        node.args = (arguments, *node.args[1:])


def _replace(node: Node, by: Node) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _forget_unread(graph: Graph, rows: Mapping[str, str], joined: Node) -> None:
    """Removes inputs of which only the length is used, which is the same for all rows."""
    for node in list(graph.nodes):
        if node.op != "placeholder" or node.name not in rows:
            continue
        if all(_operation(user) == "sym_size" and user.args[1] == 0 for user in node.users):
            for user in list(node.users):
                user.args = (joined, 0)
            graph.erase_node(node)


def _cut(node: Node, rows: Mapping[str, str]) -> FeatureSlice | None:
    """Returns the slice of a feature that a node represents, or None."""
    if node.op == "placeholder":
        width = _pooled_width(node) if node.name in rows else None
        return None if width is None else FeatureSlice(rows[node.name], 0, width)
    if _operation(node) != "slice":
        return None
    source, dim, start, end, step = _arguments(node, _SLICE)
    whole = _cut(source, rows) if getattr(source, "op", "") == "placeholder" else None
    is_fixed = all(isinstance(bound, int | None) for bound in (start, end))
    if whole is None or dim not in {1, -1} or step != 1 or not is_fixed:
        return None
    begin, behind, _ = slice(start, end).indices(whole.end)
    return FeatureSlice(whole.feature, begin, behind) if begin < behind else None


def _pooled_width(node: Node) -> int | None:
    """Returns the width of an input [B, width]; None if dynamic."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.dtype != torch.float32:
        return None
    width: Any = value.shape[1]  # a symbol if dynamic
    return width if isinstance(width, int) else None


def _is_idle(node: Node) -> bool:
    name, source = _operation(node), node.args[0] if node.args else None
    value = getattr(source, "meta", {}).get("val")
    if not isinstance(value, torch.Tensor):
        return False
    if name == "flatten":
        _, begin, end = _arguments(node, _FLATTEN)
        return value.ndim > 0 and begin % value.ndim == end % value.ndim
    if name == "slice":
        _, _, start, end, step = _arguments(node, _SLICE)
        return start in {0, None} and end in {sys.maxsize, None} and step == 1
    return name == "dropout" and node.args[2] is False


def _arguments(node: Node, defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*node.args, *defaults[len(node.args) :])


def _dim_of(node: Node) -> object:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)


def _writes(graph: Graph) -> bool:
    """Returns whether an operation works in place: then the arguments of a cat may differ from the inputs."""
    return any(isinstance(node.target, OpOverload) and node.target._schema.is_mutable for node in graph.nodes)  # noqa: SLF001


def _operation(node: Node) -> str:
    """Returns the ATen name of a node; empty if it has none."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload) or target.namespace != "aten":
        return ""
    return str(target).split(".")[1]


FORMAT = "monolith-graph"
VERSION = 1
MOST_BYTES = 64 << 20
"""Maximum size of the file."""
_KINDS = {"weight", "constant", "rows", "column", "values", "row_splits"}
JOINED = ":"
"""Prefix of the names of inputs that are not features, so that they never clash with features."""
_ONE_AT_A_TIME = threading.Lock()
"""Torch's deserializer uses global state."""


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """A callable graph. Thread-safe."""

    module: GraphModule
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    joined: Mapping[str, JoinedRows] = field(default_factory=dict)
    """Components of inputs of kind ``joined``."""

    @property
    def call(self) -> Callable[..., tuple[Tensor, ...]]:
        """Function that computes the outputs."""
        return self.module.forward


def graph_to_bytes(program: ExportedProgram, inputs: Sequence[GraphInput], outputs: Sequence[str]) -> bytes:
    """Encodes a graph as the text of a file."""
    serializer = serde.GraphModuleSerializer(program.graph_signature, [])
    module = json.loads(serde._to_json_bytes(serializer.serialize(program.graph_module)))  # noqa: SLF001
    for node in module["graph"]["nodes"]:
        node["metadata"] = {}
    module |= {"signature": {"input_specs": [], "output_specs": []}, "module_call_graph": [], "metadata": {}}
    require_plain_graph(module, origin="export")
    document = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "schema": list(torch_schema.SCHEMA_VERSION),
        "inputs": [list(entry) for entry in inputs],
        "outputs": list(outputs),
        "graph_module": module,
    }
    return json.dumps(document).encode()


def graph_from_bytes(text: bytes, *, origin: str, joins_rows: bool = False) -> LoadedGraph:
    """Decodes the output of `graph_to_bytes`; nothing runs before operations and names are checked.

    With `joins_rows`, features that the graph concatenates become one input, of kind ``joined``, for callers that can
    produce it directly.
    """
    document = _document(text, origin)
    require_plain_graph(document["graph_module"], origin=origin)
    deserialized = _deserialized(document, origin)
    graph = deserialized.graph
    require_safe_calls(graph, origin=origin)
    places = [node.name for node in graph.nodes if node.op == "placeholder"]
    inputs = tuple(GraphInput(*entry) for entry in document["inputs"])
    if len(places) != len(inputs):
        raise DataLossError(f"{origin}: the graph has {len(places)} inputs, {len(inputs)} are named")
    named = dict(zip(places, inputs, strict=True))
    try:
        drop_idle(graph)
        rows = {place: entry.name for place, entry in named.items() if entry.kind == "rows"}
        joined = join_rows(graph, rows) if joins_rows else {}
        call_directly(graph)
        deserialized.recompile()
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        raise DataLossError(f"{origin}: an operation has arguments that it does not take: {error!r:.200}") from error
    placeholders = (node.name for node in graph.nodes if node.op == "placeholder")
    taken = tuple(named.get(place) or GraphInput("joined", JOINED + place) for place in placeholders)
    parts = {JOINED + place: joined_rows for place, joined_rows in joined.items()}
    return LoadedGraph(deserialized, taken, tuple(document["outputs"]), parts)


def _deserialized(document: Mapping[str, Any], origin: str) -> GraphModule:
    plain = {
        "graph": document["graph_module"]["graph"],
        "signature": {"input_specs": [], "output_specs": []},
        "module_call_graph": [],
        "metadata": {},
        "treespec_namedtuple_fields": {},
    }
    try:
        read = serde._dict_to_dataclass(torch_schema.GraphModule, plain)  # type: ignore[no-untyped-call]  # noqa: SLF001
        with _ONE_AT_A_TIME:
            deserialized = serde.GraphModuleDeserializer().deserialize(read, {}, {}, None, {})
            return deserialized.graph_module
    except OpError:
        raise
    except Exception as error:
        raise FailedPreconditionError(
            f"{origin}: written by torch {document['torch']}, torch {torch.__version__} cannot read it:"
            f" {type(error).__name__}: {str(error)[:300]}; export again, or serve with torch {document['torch']}"
        ) from error


def _document(text: bytes, origin: str) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise DataLossError(f"{origin}: {len(text)} bytes, a graph has at most {MOST_BYTES}")
    try:
        document: dict[str, Any] = json.loads(text)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError(f"format {document['format']!r}, version {document['version']!r}")  # noqa: TRY301
        named = all(len(item) == 2 and item[0] in _KINDS and isinstance(item[1], str) for item in document["inputs"])
        if not named or not all(isinstance(item, str) for item in document["outputs"]):
            raise TypeError("inputs and outputs must be named")  # noqa: TRY301
        if not isinstance(document["graph_module"], dict) or not isinstance(document["torch"], str):
            raise TypeError("graph_module must be an object, torch a text")  # noqa: TRY301
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataLossError(f"{origin}: not a graph of version {VERSION}: {error}") from error
    return document
