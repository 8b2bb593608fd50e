"""Checks the JSON of a graph before torch reads it.

Torch generates Python code from the names in a graph and evaluates the expressions of its sizes, so that a crafted file
could run arbitrary code. A graph that passes has operations of a fixed list, names that are identifiers and are defined
once, sizes of integers and symbols, 64-bit numbers, and CPU tensors.
"""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Any

from monolith.errors import DataLossError, UnimplementedError
from monolith.export.allowed_operations import is_allowed_operation

if TYPE_CHECKING:
    from collections.abc import Iterator

_ARGUMENT = re.compile(
    r"as_(none|tensors?|nested_tensors|optional_tensors?|ints?|int_lists|floats?|bools?|complex|strings?|name|expr"
    r"|sym_(int|bool|float)s?|scalar_type|memory_format|layout|device)"
)
_SIZE_TOKEN = re.compile(
    r"\s*(Symbol\('[a-z]\d{1,9}'(, [a-z]{1,20}=(True|False))*\)|Integer\(-?\d{1,18}\)|[(),]"
    r"|(Add|Mul|Max|Min|FloorDiv|CleanDiv|CeilDiv|Mod|PythonMod|ModularIndexing|Identity)(?=\())"
)
"""Expressions in sympy's notation."""
_LONGEST_SIZE = 1000
_DEEPEST = 64
MOST_NODES = 100_000
"""Maximum number of operations of a graph."""
_INT64 = range(-(2**63), 2**63)
_STRIDED = 7
"""Torch's number of the strided layout."""
_VALUES = ("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values")


def require_plain_graph(module: Any, *, origin: str) -> None:
    """Validates the JSON of a graph."""
    try:
        graph = module["graph"]
        if len(graph["nodes"]) > MOST_NODES:
            raise DataLossError(f"{origin}: it has {len(graph['nodes'])} operations, more than {MOST_NODES}")
        for node in graph["nodes"]:
            _require_operation(node["target"], origin)
            node["metadata"] = {}
        _walk(module, origin, depth=0)
        for name in (name for values in _VALUES for name in graph.get(values) or ()):
            if not _is_name(name):
                raise DataLossError(f"{origin}: {name!r:.80} is no name of a value")
        if graph.get("custom_obj_values"):
            raise DataLossError(f"{origin}: it has objects of classes, an export has none")
        _require_defined_once(graph, origin)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataLossError(f"{origin}: not the graph of a model: {error!r}") from error


def _require_operation(target: Any, origin: str) -> None:
    if not is_allowed_operation(target):
        raise UnimplementedError(
            f"{origin}: operation {target!r:.120} is not in the list of operations that an export may have; nothing of"
            " it was run. If you made the export and trust the operation, allow it where the export is written and"
            " where it is served: monolith.serving.allow_operations, or monolith serve --allow_operation"
        )


def _walk(value: Any, origin: str, *, depth: int) -> None:
    if depth > _DEEPEST:
        raise DataLossError(f"{origin}: nested deeper than any graph")
    if isinstance(value, list):
        for item in value:
            _walk(item, origin, depth=depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _require_entry(key, item, origin)
            _walk(item, origin, depth=depth + 1)


def _require_entry(key: str, value: Any, origin: str) -> None:
    if key in {"name", "as_name", "graph_name"} and not (value is None or value == "" or _is_name(value)):
        raise DataLossError(f"{origin}: {value!r:.80} is no name of a value")
    if key == "expr_str" and not _is_size(value):
        raise DataLossError(f"{origin}: {value!r:.80} is no size")
    if key.startswith("as_") and not _ARGUMENT.fullmatch(key):
        raise DataLossError(f"{origin}: an argument {key!r:.80} is none that an export has")
    if key == "as_int" and not (type(value) is int and value in _INT64):
        raise DataLossError(f"{origin}: {value!r:.80} is no number of 64 bits")
    if key == "as_ints" and not all(type(item) is int and item in _INT64 for item in value):
        raise DataLossError(f"{origin}: {value!r:.80} are no numbers of 64 bits")
    if key in {"as_device", "device"} and value["type"] != "cpu":
        raise DataLossError(f"{origin}: a tensor on {value['type']!r:.80}, an export is for the CPU")
    if key in {"as_layout", "layout"} and value != _STRIDED:
        raise DataLossError(f"{origin}: a tensor of layout {value!r:.80}, expected a plain one")


def _require_defined_once(graph: Any, origin: str) -> None:
    """Checks that every value is defined by one input or one operation, before it is used."""
    defined: set[str] = set()
    described = {name for values in _VALUES for name in graph.get(values) or ()}
    for used, outputs in (((), graph["inputs"]), *((node["inputs"], node["outputs"]) for node in graph["nodes"])):
        for name in _names_in(used):
            if name not in defined:
                raise DataLossError(f"{origin}: value {name!r:.80} is used before it is defined")
        for name in _names_in(outputs):
            if name in defined:
                raise DataLossError(f"{origin}: value {name!r:.80} is defined twice")
            if name not in described:
                raise DataLossError(f"{origin}: value {name!r:.80} has no type")
            defined.add(name)
    for name in _names_in(graph["outputs"]):
        if name not in defined:
            raise DataLossError(f"{origin}: output {name!r:.80} is not defined")
    _require_own_names(graph, defined, origin)


def _require_own_names(graph: Any, defined: set[str], origin: str) -> None:
    taken: set[str] = set()
    for node in graph["nodes"]:
        name, own = node.get("name"), set(_names_in(node["outputs"]))
        if name is None:
            continue
        if name in taken or (name in defined and name not in own):
            raise DataLossError(f"{origin}: value {name!r:.80} is defined twice")
        taken.add(name)


def _names_in(value: Any) -> Iterator[str]:
    """Yields the names of values in arguments, in order; the name of an argument itself does not count."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _names_in(item)
    elif isinstance(value, dict):
        if "arg" in value:
            yield from _names_in(value["arg"])
        elif isinstance(value.get("as_name"), str):
            yield value["as_name"]
        elif isinstance(value.get("name"), str):
            yield value["name"]
        else:
            for key, item in value.items():
                if key.startswith("as_"):
                    yield from _names_in(item)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isidentifier() and not keyword.iskeyword(value)


def _is_size(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_SIZE:
        return False
    place = 0
    while match := _SIZE_TOKEN.match(value, place):
        place = match.end()
    return place == len(value)
