"""PyArrow, which extras install: its modules, each imported at its first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from monolith.errors import UnimplementedError

__all__ = ["pa", "pa_csv", "pa_json", "pc", "pyarrow_module"]


class _LazyModule(ModuleType):
    """Stands for a module, and imports it when one of its names is read."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # further reads cost nothing
        return value


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as pa_csv
    from pyarrow import json as pa_json
else:
    pa, pc, pa_csv, pa_json = map(_LazyModule, ("pyarrow", "pyarrow.compute", "pyarrow.csv", "pyarrow.json"))


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
