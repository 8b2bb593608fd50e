"""Doors of packages: public names that load on first use, former names that still work, and packages that moved.

A package's ``__init__.pyi`` lists its public names, for type checkers and for `open_door`. Other packages import from
doors only (`tests/test_doors.py`).
"""

from __future__ import annotations

import ast
import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FORMER_NAMES", "MOVED_PACKAGES", "find_moved_packages", "open_door"]

MOVED_PACKAGES = {
    "monolith.online.progressive_validation": "monolith.validation",
    "monolith.publishing": "monolith.deltalog.publish",
    "monolith.train.tpu": "monolith.tpu",
}
"""Old package to new package."""

FORMER_NAMES: dict[str, Mapping[str, str]] = {}
"""Old name to new name, by package; packages add theirs when they are imported."""

_NO_NAMES: Mapping[str, str] = {}
_NOT_MODULES: dict[str, frozenset[str]] = {}


def open_door(
    package: str, former: Mapping[str, str] = _NO_NAMES
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load on first use.

    Args:
        package: Name of the package; its names are the imports in the ``__init__.pyi`` next to its ``__init__.py``.
        former: Old name to new name; a name that moved to another package is given with that package. Old names work
            for one version, with a warning.
    """
    FORMER_NAMES[package] = former
    module = sys.modules[package]
    homes = _homes(package, Path(str(module.__file__)).with_suffix(".pyi"))
    names = sorted(homes)
    module.__class__ = _Door
    _NOT_MODULES[package] = frozenset(name for name in names if homes[name] is not None)

    def get(name: str) -> Any:
        if name in homes:
            home = homes[name]
            value = _attribute(home, name) if home else importlib.import_module(f"{package}.{name}")
            module.__dict__[name] = value  # the next access does not call `get`
            return value
        if name in former:
            text = f"{package}.{name} is deprecated and will be removed in the next version: use {former[name]}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            home, _, attribute = former[name].rpartition(".")
            return _attribute(home or package, attribute)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, names.copy, names


def _homes(package: str, stub: Path) -> dict[str, str | None]:
    """Returns the module that each name of a stub comes from; None: the name is a module of the package."""
    homes: dict[str, str | None] = {}
    for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            prefix = f"{package}." if statement.level else ""
            home = prefix + statement.module if statement.module else None
            homes.update((alias.name, home) for alias in statement.names if alias.asname == alias.name)
    return homes


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


class _Door(ModuleType):
    """A package that keeps a public name that one of its modules has too.

    Importing ``package.save`` sets the attribute ``save`` of the package to that module, also where its door offers a
    function of this name.
    """

    def __setattr__(self, name: str, value: object) -> None:
        is_module = value is sys.modules.get(f"{self.__name__}.{name}")
        if not (is_module and name in _NOT_MODULES[self.__name__]):
            super().__setattr__(name, value)


def find_moved_packages() -> None:
    """Lets the packages of `MOVED_PACKAGES` be imported by their old names."""
    # First: Python imports a directory that an update has emptied as a namespace package.
    sys.meta_path.insert(0, _MovedPackages())


class _MovedPackages(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED_PACKAGES else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED_PACKAGES[module.__name__]
        text = f"{module.__name__} is deprecated and will be removed in the next version: import {new}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        moved = importlib.import_module(new)
        module.__doc__ = moved.__doc__
        module.__getattr__ = lambda name: getattr(moved, name)  # type: ignore[method-assign]
