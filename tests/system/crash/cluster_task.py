"""The task of a job of many processes under faults, and the expected rows in the end.

Rows start at 0; each occurrence has the gradient -1, and the learning rate is 1. Every example of worker w has all
marks of w, so that a mark's row is the number of the worker's examples in it, on whichever server it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import nn

from monolith.data import Batch, GeneratedDataset, JsonLinesDataset
from monolith.nn import Embeddings, Slot
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from monolith.train import InstantiableParams, Mode, Spec, Task, current_context

NUM_MARKS = 16
"""Marks of each worker: enough that every server has some."""
_LARGE = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInput:
    """The input of some workers. Batch k of worker w is always the same."""

    seed: int
    num_workers: int = 2
    num_batches: int = 400
    """Batches of each worker."""
    batch_size: int = 8
    num_ids: int = 300
    """Few enough that most ids repeat, in every worker."""

    def ids(self, worker: int, number: int) -> torch.Tensor:
        """Returns the ids of a batch."""
        draw = torch.Generator().manual_seed(hash((self.seed, worker, number)) % _LARGE)
        return torch.randint(self.num_ids, (self.batch_size,), generator=draw)

    def marks(self, worker: int) -> list[int]:
        """Returns the ids that every example of a worker has."""
        return [worker * NUM_MARKS + number for number in range(NUM_MARKS)]

    def counts(self) -> torch.Tensor:
        """Returns how often each id occurs."""
        found = torch.zeros(self.num_ids)
        for worker in range(self.num_workers):
            for number in range(self.num_batches):
                found += torch.bincount(self.ids(worker, number), minlength=self.num_ids)
        return found

    @property
    def num_examples(self) -> int:
        """Number of examples of each worker."""
        return self.num_batches * self.batch_size

    def write(self, folder: Path, *, batches_per_file: int) -> None:
        """Writes files of JSON lines, in which the batches of all workers alternate."""
        for first in range(0, self.num_batches, batches_per_file):
            for worker in range(self.num_workers):
                lines = [
                    json.dumps({"id": key, "mark": self.marks(worker), "place": number})
                    for number in range(first, min(first + batches_per_file, self.num_batches))
                    for key in self.ids(worker, number).tolist()
                ]
                (folder / f"{first:06d}-{worker}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


class HasLimit(Protocol):
    """Limits the progress of a process."""

    def wait_below(self, number: int) -> None:
        """Returns when the step at this position may run."""
        ...


class Disturbed:
    """State that a disturbed process shares with its parent: its limit, and its progress."""

    limit: HasLimit | None = None
    tell: Callable[[dict[str, Any]], None] | None = None
    steps: int = 0
    """Number of steps begun."""

    @classmethod
    def at(cls, place: int) -> None:
        """Reports a step at this position of the input, and blocks until it may run."""
        if cls.limit is not None:
            cls.limit.wait_below(place)
        cls.steps += 1
        if cls.tell is not None:
            cls.tell({"place": place, "steps": cls.steps})


class ClusterCountingTask(Task):
    """Counts ids and marks in rows, and examples in a dense weight."""

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with its input."""
        p = super().params()
        p.define("counted", {}, "Fields of a `ClusterInput`.")
        p.define("folder", "", "Where files are that workers share; nothing: each makes its own batches.")
        p.train.max_pending_seconds_for_barrier = 1.0  # workers that the trial blocks do not reach a barrier
        return p

    @classmethod
    def counting(cls, counted: ClusterInput) -> Self:
        """Returns a task of some input."""
        params = cls.params()
        params.counted = asdict(counted)
        return cls(params)

    def build(self) -> None:
        """Creates one number for each id and mark, and one for all examples."""
        slot = Slot(1, initializer=Zeros())
        self.emb = Embeddings({"id": slot, "mark": slot}, Sgd(learning_rate=1.0))
        self.total = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.total.weight)

    def input_fn(self, mode: Mode) -> Any:
        """Returns the batches of this worker, or those of the files that it is given."""
        given = ClusterInput(**self.p.counted)
        if self.p.folder:
            paths = sorted(str(path) for path in Path(self.p.folder).glob("*.jsonl"))
            return JsonLinesDataset(self.ctx.files(paths)).batch(given.batch_size)
        worker = current_context().worker_index
        marks = torch.tensor(given.marks(worker)).repeat(given.batch_size, 1)

        def make(number: int) -> Batch:
            place = torch.full((given.batch_size,), number)
            return Batch({"id": given.ids(worker, number), "mark": marks, "place": place})

        return GeneratedDataset(make, given.num_batches)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Returns a loss whose gradient is -1 for each occurrence."""
        if mode == "train":
            Disturbed.at(int(features["place"].max()))
        counts = self.emb(features).concat().sum()
        return Spec(loss=-counts - self.total(torch.ones(features.num_rows, 1)).sum())

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        """Returns SGD with learning rate 1, which adds the negative gradient."""
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def problems(
        self, lost: Mapping[tuple[int, int], int], lost_dense: Mapping[tuple[int, int], int], *, num_ps: int
    ) -> list[str]:
        """Returns the differences between the learned values and a plain count, one line each; for a trained task.

        Args:
            lost: Worker and server -> number of the worker's updates that the rows of the server have lost, as the job
                reports.
            lost_dense: Lost updates of dense weights, likewise.
            num_ps: Number of servers.
        """
        given = ClusterInput(**self.p.counted)
        size = given.batch_size
        found = []
        for worker in range(given.num_workers):
            missing = {given.num_examples - count for count in self._rows("mark", given.marks(worker))}
            told = {size * lost.get((worker, server), 0) for server in range(num_ps)}
            if missing != told:
                found.append(f"worker {worker}: rows miss {sorted(missing)} examples, the job reported {sorted(told)}")
        every = given.num_workers * given.num_examples
        told = {
            size * sum(lost_dense.get((worker, server), 0) for worker in range(given.num_workers))
            for server in range(num_ps)
        }
        if every - self.total.weight.item() not in told:
            found.append(
                f"the dense weight misses {every - self.total.weight.item():g}, the job reported one of {told}"
            )
        return found if any(lost.values()) else [*found, *self._miscounts(given)]

    def miscounts(self) -> list[str]:
        """Returns the differences between rows and a plain count of files, one line each; for a trained task."""
        given = ClusterInput(**self.p.counted)
        every = float(given.num_examples)
        marks = [
            f"examples of worker {worker}: {every:g} in the data, {sorted(counts)} counted"
            for worker in range(given.num_workers)
            if (counts := set(self._rows("mark", given.marks(worker)))) != {every}
        ]
        return [*marks, *self._miscounts(given)]

    def _miscounts(self, given: ClusterInput) -> Iterator[str]:
        expected = given.counts().tolist()
        for key, (count, row) in enumerate(zip(expected, self._rows("id", range(given.num_ids)), strict=True)):
            if count != row:
                yield f"id {key}: {count:g} in the data, {row:g} counted"

    def _rows(self, slot: str, ids: Any) -> list[float]:
        rows: list[float] = self.emb.lookup(slot, torch.tensor(list(ids))).reshape(-1).tolist()
        return rows
