"""Monolith trains recommenders on live traffic.

Tables give every id a row of its own, grow and expire with the traffic, and live in a C++ core; models are plain
PyTorch.

>>> import monolith as ml
>>> table = ml.HashTable(ml.TableConfig(segments=[ml.Segment(dim=2)]))
>>> table.assign([7], [[1.0, 2.0]])
>>> table.lookup([7, 8])
tensor([[1., 2.],
        [0., 0.]])

The names listed here are public and stable. A name is imported on first access, so that the command line answers
``--help`` immediately, and a program loads only what it uses. Read `monolith.tables.table_config` first,
then `monolith.tables.hash_table`.
"""

from __future__ import annotations

import importlib
import importlib.util
import typing

from monolith._doors import find_moved_packages as _find_moved_packages
from monolith._load_core import load_core as _load_core
from monolith._version import __version__

_load_core(__path__)
_find_moved_packages()

if typing.TYPE_CHECKING:
    from monolith import errors, ids, metrics, nn, optim, serving, tensors, train
    from monolith.checkpoint import load, save
    from monolith.deltalog import DeltaLog
    from monolith.nn import Embeddings, Slice, Slot
    from monolith.serving import Predictor
    from monolith.tables import (
        HashTable,
        Segment,
        TableConfig,
        TableGroup,
        TouchedKeySet,
        compressors,
        filters,
        initializers,
        row_optimizers,
    )
    from monolith.tensors import Ragged
    from monolith.train import Session, Task, Trainer

_HOMES = {
    "DeltaLog": "deltalog",
    "Embeddings": "nn",
    "HashTable": "tables",
    "Predictor": "serving",
    "Ragged": "tensors",
    "Segment": "tables",
    "Session": "train",
    "Slice": "nn",
    "Slot": "nn",
    "TableConfig": "tables",
    "TableGroup": "tables",
    "Task": "train",
    "TouchedKeySet": "tables",
    "Trainer": "train",
    "compressors": "tables",
    "filters": "tables",
    "initializers": "tables",
    "load": "checkpoint",
    "row_optimizers": "tables",
    "save": "checkpoint",
}
"""Modules of the names that are no packages here; the imports above declare the same for type checkers."""

__all__ = [
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


def __getattr__(name: str) -> typing.Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next access does not call `__getattr__`
    return value


def __dir__() -> list[str]:
    return __all__
