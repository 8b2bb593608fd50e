"""Workers that count on parameter servers: after training, the row of an id is minus the number of its occurrences.

Rows start at 0; each occurrence has the gradient 1, and the learning rate is 1. So a batch that was lost or applied
twice, even on one server only, shows in the rows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import FailedPreconditionError
from monolith.tables import BatchStamp, Segment, TableConfig, Update
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.tables import Store
    from monolith.tables.batch import Applied, Pending
    from system.crash.batch_limit import BatchLimit
    from system.crash.child import Tell

__all__ = ["CONFIGS", "CountingJob"]

CONFIGS = {"ids": TableConfig([Segment(1, initializer=Zeros(), optimizer=Sgd(learning_rate=1.0))])}
_FLUSH_SECONDS = 300.0
_LARGE = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingJob:
    """The input of some workers."""

    seed: int
    num_workers: int = 4
    num_batches: int = 150
    """Batches of each worker."""
    batch_size: int = 64
    num_ids: int = 700
    """Few enough that most ids repeat, in every worker."""
    in_flight: int = 3
    """Maximum number of pushes of a worker in flight."""
    deterministic: bool = True
    """Whether a restarted worker reads the same batches from the same position."""

    @property
    def num_occurrences(self) -> int:
        """Number of ids in all batches of all workers."""
        return self.num_workers * self.num_batches * self.batch_size

    def batch(self, worker: int, number: int, life: int) -> Tensor:
        """Returns the ids of a batch; `life` is the number of earlier starts of this worker."""
        seed = hash((self.seed, worker, number, 0 if self.deterministic else life)) % _LARGE
        draw = torch.Generator().manual_seed(seed)
        return torch.randint(self.num_ids, (self.batch_size,), generator=draw)

    def work(self, store: Store, worker: int, *, life: int, limit: BatchLimit, tell: Tell) -> dict[str, Any]:
        """Counts to the end, from the last batch of this worker on the servers; reports every submitted batch."""
        joined = store.join(worker)
        first = 0 if joined.applied is None else int(joined.applied.position)
        tell({"resumed": first, "torn": joined.next_seq - first})
        pushes: deque[Pending[Applied]] = deque()
        try:
            for number in range(first, self.num_batches):
                limit.wait_below(number)
                ids = self.batch(worker, number, life)
                stamp = BatchStamp(worker=worker, seq=number, position=str(number + 1).encode())
                plan = joined.plan(ids, torch.tensor([0, len(ids)]), stamp=stamp)
                joined.read(plan, after=number - 1 - len(pushes), step=number, train=True).result()
                rule = Update(step=number, learning_rates=torch.ones(1), times=0, previous=number - 1)
                pushes.append(joined.apply([(plan, plan.counts.float())], rule))
                while len(pushes) >= self.in_flight:
                    pushes.popleft().result()
                tell({"batch": number})
            joined.flush(timeout_seconds=_FLUSH_SECONDS)
        except FailedPreconditionError as error:
            return {"refused": str(error)}
        return {"batches": self.num_batches - first}

    def miscounts(self, store: Store) -> list[str]:
        """Returns the differences between the rows and a plain count, one line each; when all workers have ended."""
        counted = self._counted(store)
        expected = torch.zeros(self.num_ids)
        for worker in range(self.num_workers):
            for number in range(self.num_batches):
                expected += torch.bincount(self.batch(worker, number, 0), minlength=self.num_ids)
        wrong = [
            f"id {key}: {int(n)} in the data, {got:g} counted"
            for key, (n, got) in enumerate(zip(expected.tolist(), counted.tolist(), strict=True))
            if n != got
        ]
        last = dict.fromkeys(range(self.num_workers), self.num_batches - 1)
        if (applied := dict(store.stats().applied)) != last:
            wrong.append(f"the last batches applied should be {last}, they are {applied}")
        return wrong

    def deviation(self, store: Store) -> int:
        """Returns by how many occurrences all rows together differ from the data; when all workers have ended."""
        return abs(int(self._counted(store).double().sum()) - self.num_occurrences)

    def _counted(self, store: Store) -> Tensor:
        ids = torch.arange(self.num_ids)
        plan = store.plan(ids, torch.tensor([0, self.num_ids]), stamp=BatchStamp(worker=0, seq=0))
        rows = store.read(plan, step=0).result().values
        return -rows[plan.inverse.long()]
