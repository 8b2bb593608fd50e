"""Monolith trains recommenders on live traffic.

Tables give every id a row of its own, grow and expire with the traffic, and live in a C++ core; models are plain
PyTorch.

>>> import monolith as ml
>>> table = ml.HashTable(ml.TableConfig(segments=[ml.Segment(dim=2)]))
>>> table.assign([7], [[1.0, 2.0]])
>>> table.lookup([7, 8])
tensor([[1., 2.],
        [0., 0.]])

This is the door: what is listed here is public and stays. Read `monolith.tables.table_config` first, then
`monolith.tables.hash_table`.
"""

from __future__ import annotations

from monolith._load_core import load_core as _load_core
from monolith._version import __version__

_load_core(__path__)

from monolith import errors, ids, metrics, nn, optim, tensors, train
from monolith.nn import Embeddings, Slice, Slot
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
from monolith.train import Task

__all__ = [
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
