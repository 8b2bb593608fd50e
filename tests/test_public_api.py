"""The public names, pinned: adding or removing one is a decision, not an accident."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import monolith

PUBLIC_NAMES = [
    "Embeddings",
    "HashTable",
    "Ragged",
    "Segment",
    "Slice",
    "Slot",
    "TableConfig",
    "TableGroup",
    "Task",
    "TouchedKeySet",
    "__version__",
    "compressors",
    "errors",
    "filters",
    "ids",
    "initializers",
    "metrics",
    "nn",
    "optim",
    "row_optimizers",
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
    assert sorted(monolith.__all__) == PUBLIC_NAMES
    assert len(PUBLIC_NAMES) <= 25


def test_nothing_public_stands_beside_the_list() -> None:
    loose = [
        name
        for name, value in vars(monolith).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in monolith.__all__
    ]
    assert [name for name in loose if name != "annotations"] == []


@pytest.mark.parametrize("package", public_packages(), ids=lambda package: str(package.__name__))
def test_package_door_says_what_it_is_and_lists_its_names(package: ModuleType) -> None:
    assert package.__doc__
    assert list(package.__all__) == sorted(package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
