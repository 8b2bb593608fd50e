"""Lists the differences of two descriptions of plain values, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["differences"]

_SHOWN = 8
"""Differences that a message lists."""


def differences(here: Any, given: Any) -> str:
    """Returns the first few fields whose values differ, by their path; empty where nothing does."""
    found = _walk(here, given, "")
    lines = [f"{path or 'it'}: {mine} here, {theirs} given" for path, mine, theirs in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"and {len(found) - _SHOWN} more")
    return "; ".join(lines)


def _walk(here: Any, given: Any, path: str) -> list[tuple[str, str, str]]:
    if isinstance(here, Mapping) and isinstance(given, Mapping):
        found = []
        for key in sorted({*here, *given}):
            inner = f"{path}.{key}" if path else str(key)
            if key not in here:
                found.append((inner, "nothing", repr(given[key])))
            elif key not in given:
                found.append((inner, repr(here[key]), "nothing"))
            else:
                found += _walk(here[key], given[key], inner)
        return found
    if isinstance(here, list) and isinstance(given, list) and len(here) == len(given):
        pairs = enumerate(zip(here, given, strict=True))
        return [each for number, (mine, theirs) in pairs for each in _walk(mine, theirs, f"{path}[{number}]")]
    return [] if here == given else [(path, repr(here), repr(given))]
