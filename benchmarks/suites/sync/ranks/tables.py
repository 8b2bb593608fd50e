"""Plan, read and apply of a batch, each waited for, on rows that all ranks share, or of the only process.

Several ranks can also make the exchanges of such a step alone: sizes, ids, rows and gradients, and nothing with them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from benchmarks.suites.table_steps import FILLER, TableSteps, configs, gradient_of
from monolith import collective
from monolith.cli._bench import ours, workload
from monolith.collective.sharded.store import ShardedStore
from monolith.tables import BatchStamp, LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.cli._bench.setting import Setting
    from monolith.cli._bench.workload import WorkloadBatch
    from monolith.tables import Store


@contextmanager
def opened(setting: Setting, *, num_rows: int) -> Iterator[dict[str, Callable[[int], object]]]:
    """Yields the steps, with all rows inserted."""
    collective.init()
    rank, size = collective.rank(), collective.size()
    shared = ShardedStore(configs()) if size > 1 else None
    store: Store = LocalStore(configs()) if shared is None else shared
    filler = TableSteps(store, FILLER + rank, torch.zeros(ours.ROW_STEP * ours.DIM))
    for ids in ours.id_ranges(num_rows, ours.ROW_STEP):
        filler.train_ids(ids)
    batches, steps = workload.zipf_batches(setting, num_rows), TableSteps(store, rank, gradient_of(setting))
    ways: dict[str, Callable[[int], object]] = {
        "step": lambda number: steps.train(batches[(number + 7 * rank) % len(batches)])
    }
    if shared is not None:
        ways["exchanges"] = _exchanges(shared, batches[7 * rank % len(batches)])
    yield ways
    store.close()


def _exchanges(store: ShardedStore, batch: WorkloadBatch) -> Callable[[int], None]:
    plan = store.plan(batch.ids, torch.tensor([0, len(batch.ids)]), stamp=BatchStamp(worker=collective.rank(), seq=0))
    line, message = collective.training_line(), plan.message
    words, answer = torch.from_numpy(message.words), torch.zeros(plan.num_values)
    sent = torch.tensor([message.num_words, message.num_values]).T.contiguous()

    def exchange() -> None:
        told = torch.empty_like(sent)
        line.wire.exchange_evenly(told, sent)
        num_words, num_values = told.T.tolist()
        line.wire.exchange(words.new_empty(sum(num_words)), words, num_words, message.num_words)
        rows = answer.new_zeros(sum(num_values))
        line.wire.exchange(answer, rows, message.num_values, num_values)
        line.wire.exchange(rows, answer, num_values, message.num_values)

    return lambda _: line.run(exchange, "the exchanges of a step")
