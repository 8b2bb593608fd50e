"""Nobody outside the engines asks which engine a store, a plan or a cut is of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ENGINES = ("Store", "Plan", "Cut", "WorkerSession")
OWN = {"PlannedBatch"}
"""Of `nn`: what a caller may hand over instead of a batch."""


def names_in(node: ast.expr) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


def asked_kinds(source: str) -> list[str]:
    """The classes of engines that the code asks for with `isinstance` or `issubclass`."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in {"isinstance", "issubclass"}:
            kinds = [name for name in names_in(call.args[1]) if name.endswith(ENGINES) and name not in OWN]
            found += kinds
    return found


def test_no_module_outside_the_engines_checks_the_engine_type(project_root: Path) -> None:
    package = project_root / "src" / "monolith"
    engines = {package / name for name in ("collective", "ps", "tables", "testing")}  # that of tests, too
    files = [path for path in package.rglob("*.py") if engines.isdisjoint(path.parents)]
    assert len(files) > 200
    asked = {str(path.relative_to(package)): asked_kinds(path.read_text(encoding="utf-8")) for path in files}
    assert {path: kinds for path, kinds in asked.items() if kinds} == {}


def test_the_question_is_noticed() -> None:
    assert asked_kinds("if isinstance(store, LocalStore | PsStore): pass") == ["LocalStore", "PsStore"]
    assert asked_kinds("isinstance(plan, tables.LocalPlan)") == ["LocalPlan"]
    assert asked_kinds("isinstance(batch, PlannedBatch) or isinstance(x, int)") == []
