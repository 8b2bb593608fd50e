"""Finds tests by the ids that tables and pages name."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def exists(test_id: str) -> bool:
    """Whether there is such a test: ``tests/x/test_y.py::TestZ::test_w``."""
    file, *path = test_id.split("::")
    node: ast.AST = _parsed(file)
    for part in path:
        found = [child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part]
        if not found:
            return False
        node = found[0]
    return bool(path)
