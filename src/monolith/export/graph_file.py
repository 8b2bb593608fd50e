"""A graph as JSON, in the form of torch's own serializer, without anything that is pickled or run when it is read."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._export.serde import schema as torch_schema
from torch._export.serde import serialize as serde

from monolith.errors import DataLossError, FailedPreconditionError, OpError
from monolith.export.graph import GraphInput
from monolith.export.graph_check import require_plain_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from monolith.export.graph import TracedModel

__all__ = ["LoadedGraph", "graph_from_bytes", "graph_to_bytes"]

FORMAT = "monolith-graph"
VERSION = 1
_KINDS = {"weight", "constant", "rows", "column", "values", "row_splits"}
_ONE_AT_A_TIME = threading.Lock()
"""Torch's deserializer keeps what it works on in a global."""


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """A graph that can be called, by any number of threads."""

    call: Callable[..., tuple[Tensor, ...]]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]


def graph_to_bytes(traced: TracedModel) -> bytes:
    """The text of its file."""
    program = traced.program
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
        "inputs": [list(each) for each in traced.inputs],
        "outputs": list(traced.outputs),
        "graph_module": module,
    }
    return json.dumps(document, allow_nan=False).encode()


def graph_from_bytes(text: bytes, *, origin: str) -> LoadedGraph:
    """What `graph_to_bytes` wrote; nothing of it runs before its operations and names were checked.

    Raises:
        DataLossError: it is something else.
        UnimplementedError: it has an operation that is none of ATen.
        FailedPreconditionError: this torch cannot read it.
    """
    document = _document(text, origin)
    module: dict[str, Any] = document["graph_module"]
    require_plain_graph(module, origin=origin)
    plain = {
        "graph": module["graph"],
        "signature": {"input_specs": [], "output_specs": []},
        "module_call_graph": [],
        "metadata": {},
        "treespec_namedtuple_fields": {},
    }
    inputs = tuple(GraphInput(*each) for each in document["inputs"])
    try:
        read = serde._dict_to_dataclass(torch_schema.GraphModule, plain)  # type: ignore[no-untyped-call]  # noqa: SLF001
        with _ONE_AT_A_TIME:
            made = serde.GraphModuleDeserializer().deserialize(read, {}, {}, None, {})
        num_places = sum(node.op == "placeholder" for node in made.graph_module.graph.nodes)
    except OpError:
        raise
    except Exception as error:
        raise FailedPreconditionError(
            f"{origin}: written by torch {document['torch']}, torch {torch.__version__} cannot read it:"
            f" {type(error).__name__}: {str(error)[:300]}; export again, or serve with torch {document['torch']}"
        ) from error
    if num_places != len(inputs):
        raise DataLossError(f"{origin}: the graph has {num_places} inputs, {len(inputs)} are named")
    return LoadedGraph(made.graph_module.forward, inputs, tuple(document["outputs"]))


def _document(text: bytes, origin: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(text)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError(f"format {document['format']!r}, version {document['version']!r}")  # noqa: TRY301
        named = all(len(each) == 2 and each[0] in _KINDS and isinstance(each[1], str) for each in document["inputs"])
        if not named or not all(isinstance(each, str) for each in document["outputs"]):
            raise TypeError("inputs and outputs must be named")  # noqa: TRY301
        if not isinstance(document["graph_module"], dict) or not isinstance(document["torch"], str):
            raise TypeError("graph_module must be an object, torch a text")  # noqa: TRY301
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataLossError(f"{origin}: not a graph of version {VERSION}: {error}") from error
    return document
