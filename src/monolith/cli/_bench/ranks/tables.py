"""Plan, read and apply of a batch, each waited for, on rows that all ranks share, or of the only process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from monolith import collective
from monolith.cli._bench import ours, workload
from monolith.cli._bench.table_steps import FILLER, TableSteps, configs, gradient_of
from monolith.collective.sharded_store import ShardedStore
from monolith.tables import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.cli._bench.setting import Setting
    from monolith.tables import Store


@contextmanager
def opened(setting: Setting, *, num_rows: int) -> Iterator[dict[str, Callable[[int], object]]]:
    """With all rows in place."""
    collective.init()
    rank, size = collective.rank(), collective.size()
    store: Store = LocalStore(configs()) if size == 1 else ShardedStore(configs())
    filler = TableSteps(store, FILLER + rank, torch.zeros(ours.ROW_STEP * ours.DIM))
    for ids in ours.id_ranges(num_rows, ours.ROW_STEP):
        filler.train_ids(ids)
    batches, steps = workload.zipf_batches(setting, num_rows), TableSteps(store, rank, gradient_of(setting))
    yield {"step": lambda number: steps.train(batches[(number + 7 * rank) % len(batches)])}
    store.close()
