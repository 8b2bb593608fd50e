"""The way to pyarrow, which is an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from monolith.errors import UnimplementedError

__all__ = ["pyarrow_module"]


def pyarrow_module(name: str, *, what: str, extra: str) -> Any:
    """Imports a module of pyarrow.

    Args:
        name: Name of the module, such as ``pyarrow.csv``.
        what: The feature that needs it, for the message.
        extra: The extra that installs it.

    Raises:
        UnimplementedError: it is not installed; the message gives the command to install it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        verb = "needs" if what.startswith("from_") else "need"
        raise UnimplementedError(f"{what} {verb} pyarrow; run: pip install 'monolith-torch[{extra}]'") from error
