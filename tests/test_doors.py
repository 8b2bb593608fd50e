"""Packages use one another through their doors: the names of `__init__`, and nothing that begins with an underscore."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import monolith

ROOT = Path(monolith.__file__).parent
EXAMPLES = ROOT.parent.parent / "examples"


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The module and the name of each import of ours, also of modules that are named in a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield (node.value, "")


def is_module(name: str) -> bool:
    return place_of(name).with_suffix(".py").is_file()


def place_of(name: str) -> Path:
    return ROOT.joinpath(*name.split(".")[1:])


def owner_of(module: str, name: str) -> str | None:
    """The package that an import is private to; None: any package may import it."""
    parts = [*module.split("."), name] if name else module.split(".")
    private = [number for number, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")]
    if private:
        owner = ".".join(parts[: private[0]])
        return owner if place_of(owner).is_dir() else owner.rpartition(".")[0]
    submodule = f"{module}.{name}"
    if is_module(submodule):
        offers = place_of(module) / "__init__.pyi"
        module = module if offers.exists() and f"import {name} as" in offers.read_text("utf-8") else submodule
    is_inner = module.count(".") > 1 and is_module(module) and not module.endswith(("_pb2", "_pb2_grpc"))
    return ".".join(module.split(".")[:2]) if is_inner else None


def violations(module: str, source: str) -> list[str]:
    """What a module imports that is private to another package."""
    package = module.rpartition(".")[0]
    return [
        f"{module} imports {imported_module}{f': {name}' * bool(name)}"
        for imported_module, name in imported(ast.parse(source))
        if imported_module.startswith("monolith")
        and (owner := owner_of(imported_module, name)) is not None
        and not f"{package}.".startswith(f"{owner}.")
    ]


def test_no_package_imports_what_is_private_to_another() -> None:
    refused = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        refused += violations(".".join(("monolith", *parts)), path.read_text("utf-8"))
    assert refused == []


def test_examples_import_from_doors() -> None:
    sources = sorted(EXAMPLES.rglob("*.py"))
    assert sources
    assert [line for path in sources for line in violations(path.stem, path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("module", "source", "is_refused"),
    [
        ("monolith.export.opened", "from monolith.checkpoint._catalog import read_manifest", True),
        ("monolith.export.opened", "from monolith.checkpoint import _catalog", True),
        ("monolith.export.opened", "import monolith.checkpoint._catalog", True),
        ("monolith.export.opened", "from monolith.checkpoint._catalog import SavedCheckpoint", True),
        ("monolith.export.opened", "def f():\n    from monolith.checkpoint._catalog import x", True),
        ("monolith.export.opened", "importlib.import_module('monolith.checkpoint._catalog')", True),
        ("monolith.export.opened", "from monolith.checkpoint.manifest import _hidden", True),
        ("monolith.export.opened", "from monolith.checkpoint.manifest import Manifest", True),
        ("monolith.export.opened", "from monolith.checkpoint import manifest", True),
        ("monolith.export.opened", "import monolith.checkpoint.manifest", True),
        ("monolith.export.opened", "importlib.import_module('monolith.checkpoint.manifest')", True),
        ("monolith.export.opened", "from monolith.tables.local.store import LocalStore", True),
        ("monolith.tables.store", "from monolith.tables.snapshot._files import x", True),
        ("monolith.export.opened", "from monolith import _core", False),
        ("monolith.export.opened", "from monolith._core import crc32c", False),
        ("monolith.checkpoint.saver", "from monolith.checkpoint._records import x", False),
        ("monolith.ps.recovery.recorder", "from monolith.ps.client.joined import x", False),
        ("monolith.export.opened", "from monolith.checkpoint import Manifest", False),
        ("monolith.export.opened", "from monolith.tables import row_optimizers", False),
        ("monolith.export.opened", "from monolith.tables.local import LocalStore", False),
        ("monolith.export.opened", "from monolith.data.protos.example_pb2 import Example", False),
        ("monolith.export.opened", "from monolith.errors import DataLossError", False),
        ("monolith.export.opened", "from monolith import __version__", False),
    ],
)
def test_the_rule(module: str, source: str, is_refused: bool) -> None:
    assert bool(violations(module, source)) is is_refused
