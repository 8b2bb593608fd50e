"""Plain values as readable YAML, without a YAML package."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["yaml_text"]

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NOT_TEXTS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
"""Words that some parsers do not read as text, in any case."""


def yaml_text(documents: Iterable[dict[str, Any]]) -> str:
    """Renders documents of maps, lists, texts and numbers.

    >>> print(yaml_text([{"kind": "Job", "spec": {"on": ["yes", 3]}}]), end="")
    kind: Job
    spec:
      "on":
        - "yes"
        - 3
    """
    return "---\n".join("".join(f"{line}\n" for line in _lines(each)) for each in documents)


def _lines(value: Any) -> Iterator[str]:
    """Yields the lines of a non-empty map or list."""
    items = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for name, each in items:
        head = "-" if name is None else f"{_scalar(name)}:"
        if not isinstance(each, dict | list) or not each:
            yield f"{head} {_scalar(each)}"
        elif name is None:
            first, *others = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
        else:
            yield head
            yield from (f"  {line}" for line in _lines(each))


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXTS:
        return value
    return json.dumps(value)  # JSON is YAML
