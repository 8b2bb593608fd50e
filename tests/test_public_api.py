"""The public names, pinned: adding or removing one is a decision, not an accident."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import monolith

PUBLIC_NAMES = [
    "DeltaLog",
    "Embeddings",
    "HashTable",
    "Predictor",
    "Ragged",
    "Segment",
    "Session",
    "Slice",
    "Slot",
    "TableConfig",
    "TableGroup",
    "Task",
    "TouchedKeySet",
    "Trainer",
    "__version__",
    "compressors",
    "errors",
    "filters",
    "ids",
    "initializers",
    "load",
    "metrics",
    "nn",
    "optim",
    "row_optimizers",
    "save",
    "serving",
    "tensors",
    "train",
]


def public_packages() -> list[ModuleType]:
    names = [monolith.__name__]
    names += [
        module.name
        for module in pkgutil.walk_packages(monolith.__path__, "monolith.")
        if module.ispkg and "._" not in module.name
    ]
    return [importlib.import_module(name) for name in names]


def test_public_names_are_exactly_these() -> None:
    assert sorted(dir(monolith)) == PUBLIC_NAMES
    assert len(PUBLIC_NAMES) <= 29


def test_nothing_public_is_missing_from_the_list() -> None:
    loose = [
        name
        for name, value in vars(monolith).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in dir(monolith)
    ]
    assert [name for name in loose if name != "annotations"] == []


@pytest.mark.parametrize("package", public_packages(), ids=lambda package: str(package.__name__))
def test_package_door_describes_itself_and_lists_its_names(package: ModuleType) -> None:
    assert package.__doc__
    assert list(package.__all__) == sorted(package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_no_class_name_exists_twice() -> None:
    """A name with an underscore is private to its module; generated code keeps the names of its messages."""
    homes: dict[str, list[str]] = {}
    for path in sorted(Path(monolith.__file__).parent.rglob("*.py")):
        if "_pb2" not in path.name:
            for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
                homes.setdefault(name, []).append(path.name)
    assert len(homes) > 1000
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


@pytest.mark.slow
def test_a_name_is_imported_on_first_access() -> None:
    program = """
import sys
import monolith as ml
assert "torch" not in sys.modules and "numpy" not in sys.modules, "the door alone imports neither"
assert ml.errors.NotFoundError and "torch" not in sys.modules
assert ml.Slot(dim=2) and "torch" in sys.modules
import monolith.cli.ps
assert "monolith.train" not in sys.modules, "a program pays for what it uses, and so does a bare parameter server"
assert ml.data is sys.modules["monolith.data"], "packages that are not listed are found as well"
from monolith import *
assert Task is ml.train.Task and "Embeddings" in vars(ml), "what was asked for stays"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_type_checkers_and_programs_get_the_same_names() -> None:
    tree = ast.parse(Path(monolith.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(tree.body), "a door has imports only"
    assert sorted(alias.asname or "" for node in imports for alias in node.names) == PUBLIC_NAMES == dir(monolith)


def test_a_missing_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'monolith' has no attribute 'Embedings'"):
        _ = monolith.Embedings  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Embedings' from 'monolith'"):
        exec("from monolith import Embedings")  # noqa: S102 - as a program would write it
