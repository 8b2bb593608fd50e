"""Former names of the public interface: each still works for one version, with a warning that gives the new name."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FORMER_NAMES", "former_names"]

FORMER_NAMES: dict[str, Mapping[str, str]] = {}
"""Old name to new name, by package; packages add theirs when they are imported."""


def former_names(
    package: str, names: Mapping[str, str], otherwise: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a package some of whose names have changed.

    Args:
        package: Name of the package.
        names: Old name to new name.
        otherwise: The package's own ``__getattr__``, which is called for all other names.
    """
    FORMER_NAMES[package] = names

    def get(name: str) -> Any:
        if name in names:
            text = f"{package}.{name} is deprecated and will be removed in the next version: use {names[name]}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], names[name])
        if otherwise is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return otherwise(name)

    return get
