"""Monolith trains recommenders on live traffic.

Tables give every id a row of its own, grow and expire with the traffic, and live in a C++ core; models are plain
PyTorch.

>>> import monolith as ml
>>> table = ml.HashTable(ml.TableConfig(segments=[ml.Segment(dim=2)]))
>>> table.assign([7], [[1.0, 2.0]])
>>> table.lookup([7, 8])
tensor([[1., 2.],
        [0., 0.]])

The names in ``__init__.pyi`` are public and stable. A name is imported on first access, so that the command line
answers ``--help`` immediately, and a program loads only what it uses. Read `monolith.tables.table_config` first, then
`monolith.tables.hash_table`.
"""

from __future__ import annotations

import importlib
import importlib.util
import typing

from monolith._doors import find_moved_packages as _find_moved_packages
from monolith._doors import open_door as _open_door
from monolith._load_core import load_core as _load_core

_load_core(__path__)
_find_moved_packages()
_named, __dir__, __all__ = _open_door(__name__)


def __getattr__(name: str) -> typing.Any:
    if name in __all__ or name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        return _named(name)
    value = globals()[name] = importlib.import_module(f"{__name__}.{name}")  # a package, such as `monolith.hooks`
    return value
