"""Former names of the public interface: each still works for one version, with a warning that gives the new name.

`former_names` serves names of a package that were renamed or moved, `MOVED_PACKAGES` lists packages that were moved.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

__all__ = ["FORMER_NAMES", "MOVED_PACKAGES", "find_moved_packages", "former_names"]

MOVED_PACKAGES = {
    "monolith.online.progressive_validation": "monolith.validation",
    "monolith.publishing": "monolith.deltalog.publish",
    "monolith.train.tpu": "monolith.tpu",
}
"""Old package to new package."""

FORMER_NAMES: dict[str, Mapping[str, str]] = {}
"""Old name to new name, by package; packages add theirs when they are imported."""


def former_names(
    package: str, names: Mapping[str, str], otherwise: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a package some of whose names have changed.

    Args:
        package: Name of the package.
        names: Old name to new name; a name that moved to another package is given with that package.
        otherwise: The package's own ``__getattr__``, which is called for all other names.
    """
    FORMER_NAMES[package] = names

    def get(name: str) -> Any:
        if name in names:
            text = f"{package}.{name} is deprecated and will be removed in the next version: use {names[name]}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            home, _, attribute = names[name].rpartition(".")
            return getattr(importlib.import_module(home or package), attribute)
        if otherwise is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return otherwise(name)

    return get


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
        found = importlib.import_module(new)
        module.__doc__ = found.__doc__
        module.__getattr__ = lambda name: getattr(found, name)  # type: ignore[method-assign]
