"""Our side of a contest: tables of dim 16 with Adagrad, filled with the ids that a workload draws from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from monolith import _core
from monolith.cli._bench.peers import INITIAL_ACCUMULATOR, LEARNING_RATE
from monolith.cli._bench.workload import WorkloadBatch, mixed_ids
from monolith.tables import HashTable, Segment, TableConfig, initializers, row_optimizers

if TYPE_CHECKING:
    from collections.abc import Iterator

DIM: Final = 16
TIME: Final = 1_700_000_000
"""Request time of every write: expiry is not what is measured here."""

ROW_STEP: Final = 1 << 18
"""Rows written by one call while a table is filled."""


def table_config(optimizer: row_optimizers.RowOptimizer | None = None, *, dim: int = DIM) -> TableConfig:
    """Returns the config of a table; by default Adagrad with the peers' learning rate and accumulator."""
    if optimizer is None:
        optimizer = row_optimizers.Adagrad(learning_rate=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)
    initializer = initializers.RandomUniform(-0.05, 0.05)
    return TableConfig(segments=[Segment(dim, initializer=initializer, optimizer=optimizer)])


def new_table(optimizer: row_optimizers.RowOptimizer | None = None, *, dim: int = DIM) -> HashTable:
    """Returns an empty table of `table_config`."""
    return HashTable(table_config(optimizer, dim=dim))


def id_ranges(num_rows: int, step: int) -> Iterator[torch.Tensor]:
    """Yields the ids of rows 0 .. num_rows - 1, at most `step` at a time, int64 [k]."""
    for begin in range(0, num_rows, step):
        yield torch.from_numpy(mixed_ids(np.arange(begin, min(begin + step, num_rows))))


def fill(table: HashTable, num_rows: int) -> None:
    """Inserts a row for every id of the workload, by the initializer."""
    zeros = torch.zeros(ROW_STEP, table.dim)
    for ids in id_ranges(num_rows, ROW_STEP):
        table.assign_add(ids, zeros[: len(ids)], time=TIME)


def fill_with(table: HashTable, weights: torch.Tensor) -> None:
    """Sets the weights of the id of row r to weights[r], float32 [rows, dim]."""
    for number, ids in enumerate(id_ranges(len(weights), ROW_STEP)):
        table.assign(ids, weights[number * ROW_STEP :][: len(ids)], time=TIME)


def warm_up(count: int) -> None:
    """Loads code, starts threads and takes the buffers of a call with `count` ids, on a table of one row.

    Memory and first batches that are measured afterwards are then a table's own.
    """
    table, ids = new_table(), next(id_ranges(count, count))
    table.lookup(ids)
    table.plan(ids)
    table.apply_gradients(torch.zeros_like(ids), torch.zeros(count, DIM), time=TIME)


def memory_bytes(table: HashTable) -> int:
    """Returns the memory of the table by its own count."""
    stats = table.stats()
    return int(stats["row_bytes"] + stats["index_bytes"] + stats["other_bytes"])


def row_bytes(table: HashTable) -> int:
    """Bytes of one row: header, weights, state, padding."""
    return table.store.core.row_bytes(0)


def use_threads(threads: int) -> None:
    """Threads of our core and of torch, for everything that follows."""
    _core.set_num_threads(threads)
    torch.set_num_threads(threads)


class Ours:
    """Steps of a table on batches, through the public calls."""

    def __init__(self, table: HashTable, gradient: torch.Tensor) -> None:
        self.table = table
        self._gradient = gradient

    def lookup(self, batch: WorkloadBatch) -> torch.Tensor:
        """Rows of the batch, float32 [n, dim]."""
        rows: torch.Tensor = self.table.lookup(batch.ids)
        return rows

    def train(self, batch: WorkloadBatch) -> None:
        """Looks up and updates by two independent calls."""
        self.table.lookup(batch.ids)
        self.table.apply_gradients(batch.ids, self._gradient, time=TIME)

    def train_planned(self, batch: WorkloadBatch) -> None:
        """Looks up and updates with one shared plan: rows are found once per distinct id."""
        plan = self.table.plan(batch.ids)
        self.table.read(plan, per="id")
        self.table.apply(plan, self._gradient, per="id", time=TIME)

    def update(self, batch: WorkloadBatch) -> None:
        """Updates rows without a lookup before."""
        self.table.apply_gradients(batch.ids, self._gradient, time=TIME)
