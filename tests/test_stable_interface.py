"""The extension keeps to the stable interface of Python, by which it is built from 3.12 on.

Below 3.12 it is built for the one version that is there, and a compiler accepts everything: what breaks an
installation elsewhere has to be found here.
"""

from __future__ import annotations

import re
from pathlib import Path

BINDINGS = Path(__file__).resolve().parent.parent / "bindings"

_NOT_STABLE = re.compile(
    r"\bPy(?:Bytes|ByteArray|Dict|Float|List|Long|Set|Sequence_Fast|Tuple|Unicode)_[A-Z][A-Z0-9_]+\b"
)
"""Macros that look into objects; their functions are called alike, in small letters."""


def not_stable(text: str) -> set[str]:
    """What a source text uses that the stable interface does not have."""
    return set(_NOT_STABLE.findall(text))


def test_bindings_look_into_no_object_of_python() -> None:
    sources = [path for path in BINDINGS.iterdir() if path.suffix in {".h", ".cpp"}]
    assert sources
    found = {f"{path.name}: {name}" for path in sources for name in not_stable(path.read_text())}
    assert not found, f"use the function of the same name instead: {', '.join(sorted(found))}"


def test_macros_are_distinguished_from_functions() -> None:
    assert not_stable("PyBytes_AS_STRING(bytes); PyTuple_GET_ITEM(made, 0)") == {
        "PyBytes_AS_STRING",
        "PyTuple_GET_ITEM",
    }
    assert not not_stable("PyBytes_AsString(bytes); PyTuple_SetItem(made, 0, item); Py_TYPE(first); PyList_New(0)")
