"""Refuses a graph that says more than a graph of a model says, before torch is given it.

Torch makes Python code of the names in a graph and evaluates the expressions of its sizes, so that a crafted file could
run anything. What passes here has names that are names, sizes of whole numbers and symbols, and operations of ATen.
"""

from __future__ import annotations

import keyword
import re
from typing import Any

from monolith.errors import DataLossError, UnimplementedError

__all__ = ["require_plain_graph"]

_OPERATION = re.compile(r"torch\.ops\.(aten|prims)\.([a-zA-Z0-9_]+)\.([a-zA-Z0-9_]+)")
_ARITHMETIC = "add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|getitem"
_SYMBOLIC = re.compile(
    rf"_operator\.({_ARITHMETIC})|torch\.sym_(max|min|not|int|float|ite|sqrt|sum)|math\.(ceil|floor|trunc)"
)
"""What is computed with sizes."""
_REFUSED = {"from_file", "save", "load", "set_data", "_print", "warn", "format", "open", "_test_warn_in_autograd"}
"""Operations of ATen that reach outside of a graph."""
_ARGUMENT = re.compile(
    r"as_(none|tensors?|nested_tensors|optional_tensors?|ints?|int_lists|floats?|bools?|complex|strings?|name|expr"
    r"|sym_(int|bool|float)s?|scalar_type|memory_format|layout|device)"
)
_SIZE_TOKEN = re.compile(
    r"\s*(Symbol\('[a-z]\d{1,9}'(, [a-z]{1,20}=(True|False))*\)|Integer\(-?\d{1,18}\)|[(),]"
    r"|(Add|Mul|Max|Min|FloorDiv|CleanDiv|CeilDiv|Mod|PythonMod|ModularIndexing|Identity)(?=\())"
)
"""As sympy writes expressions."""
_LONGEST_SIZE = 1000
_DEEPEST = 64


def require_plain_graph(module: Any, *, origin: str) -> None:
    """Walks the JSON of a graph.

    Raises:
        UnimplementedError: an operation that is none of ATen.
        DataLossError: anything else that a graph does not say.
    """
    try:
        for node in module["graph"]["nodes"]:
            _require_operation(node["target"], origin)
            node["metadata"] = {}
        _walk(module, origin, depth=0)
        _require_names(module["graph"], origin)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataLossError(f"{origin}: not the graph of a model: {error!r}") from error


def _require_operation(target: Any, origin: str) -> None:
    found = _OPERATION.fullmatch(target) if isinstance(target, str) else None
    if (isinstance(target, str) and _SYMBOLIC.fullmatch(target)) or (
        found is not None and found[2] not in _REFUSED and not found[2].startswith("__")
    ):
        return
    raise UnimplementedError(
        f"{origin}: operation {target!r} is none of aten or prims; an export has no other, and nothing of it was run"
    )


def _walk(value: Any, origin: str, *, depth: int) -> None:
    if depth > _DEEPEST:
        raise DataLossError(f"{origin}: nested deeper than any graph")
    if isinstance(value, list):
        for each in value:
            _walk(each, origin, depth=depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            _require_entry(key, each, origin)
            _walk(each, origin, depth=depth + 1)


def _require_entry(key: str, value: Any, origin: str) -> None:
    if key in {"name", "as_name", "graph_name"} and not (value is None or value == "" or _is_name(value)):
        raise DataLossError(f"{origin}: {value!r:.80} is no name of a value")
    if key == "expr_str" and not _is_size(value):
        raise DataLossError(f"{origin}: {value!r:.80} is no size")
    if key.startswith("as_") and not _ARGUMENT.fullmatch(key):
        raise DataLossError(f"{origin}: an argument {key!r:.80} is none that an export has")


def _require_names(graph: Any, origin: str) -> None:
    for values in ("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values"):
        for name in graph.get(values) or ():
            if not _is_name(name):
                raise DataLossError(f"{origin}: {name!r:.80} is no name of a value")
    if graph.get("custom_obj_values"):
        raise DataLossError(f"{origin}: it has objects of classes, an export has none")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isidentifier() and not keyword.iskeyword(value)


def _is_size(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_SIZE:
        return False
    place = 0
    while place < len(value):
        found = _SIZE_TOKEN.match(value, place)
        if found is None:
            return False
        place = found.end()
    return True
