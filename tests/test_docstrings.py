"""Every example in a docstring of the package is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import monolith


def module_names() -> Iterator[str]:
    yield monolith.__name__
    for module in pkgutil.walk_packages(monolith.__path__, "monolith."):
        if module.name != "monolith._core":
            yield module.name


@pytest.mark.parametrize("name", list(module_names()))
def test_examples_in_docstrings_are_true(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert result.failed == 0
