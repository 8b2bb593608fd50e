"""Pieces of graphs as torch writes them, for files that no model would make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from monolith.checkpoint.tensor_file import sum_of
from monolith.files import seal

GRAPH = "graph.serving_default.json"

Json = Any


def tensor(name: str) -> Json:
    return {"as_tensor": {"name": name}}


def size(name: str) -> Json:
    return {"as_sym_int": {"as_name": name}}


def node(target: str, out: str, *args: Json, result: Json | None = None, **named: Json) -> Json:
    """An operation; its arguments are written as torch writes them."""
    inputs = [{"name": name, "arg": each, "kind": 1} for name, each in zip(_argument_names(target), args, strict=False)]
    inputs += [{"name": name, "arg": each, "kind": 2} for name, each in named.items()]
    return {
        "target": target,
        "inputs": inputs,
        "outputs": [tensor(out) if result is None else result],
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": out,
    }


def _argument_names(target: str) -> list[str]:
    if not target.startswith("torch.ops."):
        return ["a", "b"]
    _, _, namespace, name, overload = target.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    return [argument.name for argument in schema.arguments]


def described(*sizes: int, dtype: int = 7) -> Json:
    strides: list[Json] = []
    total = 1
    for each in reversed(sizes):
        strides.insert(0, {"as_int": total})
        total *= each
    return {
        "dtype": dtype,
        "sizes": [{"as_int": each} for each in sizes],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": strides,
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def full(out: str, *sizes: int, value: float = 0.0) -> Json:
    return node("torch.ops.aten.full.default", out, {"as_ints": list(sizes)}, {"as_float": value})


def insert(document: Json, nodes: list[Json]) -> None:
    """Puts operations before the others and adds the last one, times zero, to the first output."""
    graph = document["graph_module"]["graph"]
    for each in nodes:
        ((kind, place),) = each["outputs"][0].items()
        if kind == "as_tensor":
            graph["tensor_values"][place["name"]] = described(1)
        else:
            graph["sym_int_values"][place["as_name"]] = {"as_int": 1}
    extra = nodes[-1]["outputs"][0]
    first = graph["outputs"][0]
    tail = []
    if "as_tensor" in extra:
        tail = [
            node("torch.ops.aten.sum.default", "forged_sum", extra),
            node("torch.ops.aten.mul.Scalar", "forged_zero", tensor("forged_sum"), {"as_float": 0.0}),
            node("torch.ops.aten.add.Tensor", "forged_out", first, tensor("forged_zero")),
        ]
        graph["tensor_values"] |= {
            "forged_sum": described(),
            "forged_zero": described(),
            "forged_out": graph["tensor_values"][first["as_tensor"]["name"]],
        }
        graph["outputs"][0] = tensor("forged_out")
    graph["nodes"] = [*nodes, *graph["nodes"], *tail]


def reseal(folder: Path, document: Any) -> None:
    """Writes a graph with the checksum that it should have."""
    data = json.dumps(document).encode()
    (folder / GRAPH).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    found = sum_of(data)
    manifest["files"][GRAPH] = {"bytes": found.bytes, "crc32c": found.crc32c}
    (folder / "manifest.json").write_bytes(seal(manifest))
