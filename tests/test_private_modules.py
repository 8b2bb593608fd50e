"""What begins with an underscore is for its own package: no other one imports it, or a name of its modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import monolith

ROOT = Path(monolith.__file__).parent


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what a module imports, also by the name in a text; those of ours."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        yield from (name for name in names if name.startswith("monolith.") and " " not in name)


def owner_of(name: str) -> str | None:
    """The package that a name with an underscore belongs to; None: it is nobody's alone."""
    parts = name.split(".")
    private = [place for place, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")]
    return ".".join(parts[: private[0]]) if private else None


def violations(module: str, source: str) -> list[str]:
    """What a module imports that is private to another package."""
    package = module.rpartition(".")[0]
    return [
        f"{module} imports {name}"
        for name in imported(ast.parse(source))
        if (owner := owner_of(name)) is not None and not f"{package}.".startswith(f"{_package(owner)}.")
    ]


def _package(owner: str) -> str:
    """A private name of a module belongs to the package of the module."""
    place = ROOT.joinpath(*owner.split(".")[1:])
    return owner if place.is_dir() else owner.rpartition(".")[0]


def test_no_package_imports_what_is_private_to_another() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(("monolith", *path.relative_to(ROOT).with_suffix("").parts))
        found += violations(module, path.read_text("utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("module", "source", "is_refused"),
    [
        ("monolith.export.opened", "from monolith.checkpoint._catalog import read_manifest", True),
        ("monolith.export.opened", "from monolith.checkpoint import _catalog", True),
        ("monolith.export.opened", "import monolith.checkpoint._catalog", True),
        ("monolith.export.opened", "def f():\n    from monolith.checkpoint._catalog import x", True),
        ("monolith.export.opened", "importlib.import_module('monolith.checkpoint._catalog')", True),
        ("monolith.export.opened", "from monolith.checkpoint.manifest import _hidden", True),
        ("monolith.tables.store", "from monolith.tables.snapshot._files import x", True),
        ("monolith.export.opened", "from monolith import _core", False),
        ("monolith.export.opened", "from monolith._core import crc32c", False),
        ("monolith.checkpoint.saver", "from monolith.checkpoint.retention import x", False),
        ("monolith.ps.recovery.recorder", "from monolith.ps.client.row_calls import x", False),
        ("monolith.export.opened", "from monolith.checkpoint.catalog import read_manifest", False),
        ("monolith.export.opened", "from monolith import __version__", False),
    ],
)
def test_the_rule(module: str, source: str, is_refused: bool) -> None:
    assert bool(violations(module, source)) is is_refused
