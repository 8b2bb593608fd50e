"""No module outside the engines depends on the engine of a store, a plan or a cut: it asks for optional protocols."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from monolith.tables import Store

ENGINES = ("Store", "Plan", "Cut", "WorkerSession")
OWN = {"PlannedBatch"}
"""Of `nn`: what a caller may hand over instead of a batch."""
PROTOCOLS = {"Store", "Plan", "Cut", "WorkerSession"}


def names_in(node: ast.expr) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier():
            yield each.value  # a type in quotes


def is_store(node: ast.expr) -> bool:
    """By its name: `store`, `self._store`, `embeddings.store`, `stores[name]`."""
    if isinstance(node, ast.Subscript):
        return is_store(node.value)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.strip("_") in {"store", "stores"}


def asked_kinds(source: str) -> list[str]:
    """The engines and their attributes that the code asks for, or takes for granted."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "native":
            found.append("native")
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "id", "")
        if called in {"isinstance", "issubclass"}:
            found += [name for name in names_in(node.args[1]) if name.endswith(ENGINES) and name not in OWN]
        elif called == "cast":
            kinds = [name for name in names_in(node.args[0]) if name.endswith(ENGINES)]
            found += [name for name in kinds if name not in PROTOCOLS]
        elif called in {"getattr", "hasattr"} and is_store(node.args[0]):
            found += [name for name in names_in(node.args[1]) if not hasattr(Store, name)]
    return found


def test_no_module_outside_the_engines_depends_on_the_engine(project_root: Path) -> None:
    package = project_root / "src" / "monolith"
    engines = {package / name for name in ("collective", "ps", "tables", "testing")}  # that of tests, too
    files = [path for path in package.rglob("*.py") if engines.isdisjoint(path.parents)]
    assert len(files) > 200
    asked = {str(path.relative_to(package)): asked_kinds(path.read_text(encoding="utf-8")) for path in files}
    assert {path: kinds for path, kinds in asked.items() if kinds} == {}


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("if isinstance(store, LocalStore | PsStore): pass", ["LocalStore", "PsStore"]),
        ("isinstance(plan, tables.LocalPlan)", ["LocalPlan"]),
        ("isinstance(batch, PlannedBatch) or isinstance(x, int)", []),
        ("isinstance(store, RemoteRows)", []),
        ('cast("PsStore", store).name', ["PsStore"]),
        ("cast(PsWorkerSession, joined)", ["PsWorkerSession"]),
        ('[cast("Tensor", x), cast("Store", store)]', []),
        ('getattr(self._store, "owners", None)', ["owners"]),
        ('hasattr(stores[name], "open_publisher")', ["open_publisher"]),
        ('getattr(options, "store")', []),
        ("store.native.core", ["native"]),
    ],
)
def test_the_question_is_noticed(source: str, kinds: list[str]) -> None:
    assert asked_kinds(source) == kinds
