"""A graph as JSON, in the format of torch's serializer; reading it neither unpickles nor runs anything."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._export.serde import schema as torch_schema
from torch._export.serde import serialize as serde

from monolith.errors import DataLossError, FailedPreconditionError, OpError
from monolith.export.graph_check import require_plain_graph
from monolith.export.graph_limits import GraphInput, require_safe_calls
from monolith.export.graph_passes import call_directly, drop_idle, join_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule

    from monolith.export.graph_passes import JoinedRows

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
    """Encodes a graph as the text of a file.

    Args:
        program: Program with the graph.
        inputs: Meaning of its inputs.
        outputs: Names of its outputs.
    """
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

    Args:
        text: Contents of the file.
        origin: Name of the source, for messages.
        joins_rows: Whether features that the graph concatenates become one input, of kind ``joined``, for callers that
            can produce it directly.

    Raises:
        DataLossError: the text is not a valid graph.
        UnimplementedError: the graph has an operation that is not allowed.
        FailedPreconditionError: this version of torch cannot read it.
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
        joined = _make_quicker(graph, named, joins_rows=joins_rows)
        deserialized.recompile()
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        raise DataLossError(f"{origin}: an operation has arguments that it does not take: {error!r:.200}") from error
    taken = tuple(
        named.get(node.name) or GraphInput("joined", JOINED + node.name)
        for node in graph.nodes
        if node.op == "placeholder"
    )
    parts = {JOINED + place: joined_rows for place, joined_rows in joined.items()}
    return LoadedGraph(deserialized, taken, tuple(document["outputs"]), parts)


def _deserialized(document: Mapping[str, Any], origin: str) -> GraphModule:
    """Deserializes a checked graph with torch."""
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


def _make_quicker(graph: Graph, named: Mapping[str, GraphInput], *, joins_rows: bool) -> dict[str, JoinedRows]:
    drop_idle(graph)
    rows = {place: entry.name for place, entry in named.items() if entry.kind == "rows"}
    joined = join_rows(graph, rows) if joins_rows else {}
    call_directly(graph)
    return joined


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
