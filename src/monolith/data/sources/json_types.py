"""Types of the fields of JSON lines, by the first of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

__all__ = ["found_fields"]

_MOST_LOOKED_AT = 10_000
_NOTHING = "nothing"
_KINDS = {type(None): _NOTHING, bool: "flag", int: "int", float: "float", str: "text"}


def found_fields(head: bytes) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Returns the type of each field, and the fields whose values have no common type, with their types.

    Lines that are not objects are left to the reader.
    """
    kinds: dict[str, set[str]] = {}
    for line in head.splitlines()[:_MOST_LOOKED_AT]:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict):
            for name, value in fields.items():
                kinds.setdefault(name, set()).add(_kind(value))
    found: dict[str, pa.DataType] = {}
    odd: dict[str, str] = {}
    for name, seen in kinds.items():
        kind = _common(seen)
        if kind is None:
            odd[name] = " and ".join(sorted(seen - {_NOTHING}))
        else:
            found[name] = _arrow_type(kind)
    return found, odd


def _kind(value: Any) -> str:
    if isinstance(value, list):
        inner = _common({_kind(each) for each in value})
        return f"list of {inner}" if inner is not None else "mixed list"
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
        return "large int" if 0 <= value < 1 << 64 else "float"
    return _KINDS.get(type(value), "object")


def _common(kinds: Iterable[str]) -> str | None:
    """Returns the kind that holds all of these; None: there is none."""
    seen = set(kinds) - {_NOTHING}
    if not seen:
        return _NOTHING
    if all(kind.startswith("list of ") for kind in seen):
        inner = _common({kind.removeprefix("list of ") for kind in seen})
        return None if inner is None else f"list of {inner}"
    for wider in ({"int", "float"}, {"int", "large int"}):
        if seen == wider:
            return "float" if "float" in wider else "large int"
    kind = next(iter(seen))
    return kind if len(seen) == 1 and kind not in {"object", "mixed list"} else None


def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if kind.startswith("list of "):
        return pa.list_(_arrow_type(kind.removeprefix("list of ")))
    types = {"flag": pa.bool_(), "int": pa.int64(), "large int": pa.uint64(), "float": pa.float64()}
    return types.get(kind, pa.string())
