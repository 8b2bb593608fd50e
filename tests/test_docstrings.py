"""Every example in a docstring of the package is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import monolith

PACKAGES = sorted(module.name for module in pkgutil.iter_modules(monolith.__path__) if module.name != "_core")


def module_names(package: str) -> Iterator[str]:
    yield package
    paths = getattr(importlib.import_module(package), "__path__", [])
    yield from (module.name for module in pkgutil.walk_packages(paths, f"{package}."))


def failed_examples(module_name: str) -> int:
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    docstrings = doctest.DocTestFinder().find(importlib.import_module(module_name))
    # A run costs milliseconds also where there is no example, as in most docstrings.
    return sum(runner.run(docstring).failed for docstring in docstrings if docstring.examples)


def test_examples_in_the_package_itself_are_true() -> None:
    assert failed_examples("monolith") == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_examples_in_docstrings_are_true(package: str) -> None:
    assert {name for name in module_names(f"monolith.{package}") if failed_examples(name)} == set()
