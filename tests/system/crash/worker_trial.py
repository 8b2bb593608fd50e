"""Workers that count on parameter servers while they are killed, paused and replaced, and checks of the counts.

After training, the row of an id is minus the number of its occurrences: rows start at 0, each occurrence has the
gradient 1, and the learning rate is 1. So a batch that was lost or applied twice, even on one server only, shows.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from monolith.errors import FailedPreconditionError
from monolith.tables import BatchStamp, Segment, Store, TableConfig, Update
from monolith.tables.batch import Applied, Pending
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from system.crash.processes import BatchLimit, Child, Tell, result_of
from system.crash.trial import Fault, Topology, Trial, draw_for, run_trial

CONFIGS = {"ids": TableConfig([Segment(1, initializer=Zeros(), optimizer=Sgd(learning_rate=1.0))])}
_FLUSH_SECONDS = 300.0
_LARGE = 1 << 31
_POLL_SECONDS = 0.001
_LAST_BATCHES = 40
"""The last fault of a worker comes before its last batches, so that it hits a worker that still has work."""
_MOST_AHEAD = 20
"""Batches that a worker may be beyond the next fault, so that a fast machine does not outrun the faults."""
_MOST_DELAY_SECONDS = 0.01
"""After the batch at which a fault is due, so that it hits a worker anywhere in a step."""
_MOST_PAUSE_SECONDS = 0.3
_HANG_SECONDS = 600.0
_KINDS = ("kill", "pause", "kill", "replace", "kill")
"""Kinds of faults, cycled; their times and targets are random.

``kill``: SIGKILL and a restart. ``pause``: SIGSTOP, and SIGCONT some time later. ``replace``: SIGSTOP, another process
is started under its number, and SIGCONT wakes the old one, which must be rejected.
"""


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
        session = store.join(worker)
        first = 0 if session.applied is None else int(session.applied.position)
        tell({"resumed": first, "torn": session.next_seq - first})
        pushes: deque[Pending[Applied]] = deque()
        try:
            for number in range(first, self.num_batches):
                limit.wait_below(number)
                ids = self.batch(worker, number, life)
                stamp = BatchStamp(worker=worker, seq=number, position=str(number + 1).encode())
                plan = session.plan(ids, torch.tensor([0, len(ids)]), stamp=stamp)
                session.read(plan, after=number - 1 - len(pushes), step=number, train=True).result()
                rule = Update(step=number, learning_rates=torch.ones(1), times=0, previous=number - 1)
                pushes.append(session.apply([(plan, plan.counts.float())], rule))
                while len(pushes) >= self.in_flight:
                    pushes.popleft().result()
                tell({"batch": number})
            session.flush(timeout_seconds=_FLUSH_SECONDS)
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


OpenStore = Callable[[], AbstractContextManager[Store]]


def run_worker_trial(
    job: CountingJob, *, num_faults: int, open_store: OpenStore, server_pids: Sequence[int] = ()
) -> Trial[CountingJob]:
    """Runs the workers of a job with `num_faults` faults, and checks the counts. Servers must be empty.

    The parent must have one thread, and no connection to the servers: workers are forked from it. Facts of the trial:

    - ``torn``: for each start of a worker, the number of its batches that some servers had and others had not
    - ``refused``: errors of workers that had been replaced
    - ``deviation``: number of occurrences by which all rows together differ from the data

    Args:
        job: Input of the workers.
        num_faults: Total number of faults; their times are drawn from the job's seed.
        open_store: Called in each worker; opens a store at the servers, closed when the worker ends.
        server_pids: Servers of which one is paused around every second kill: requests of the worker to it may then get
            lost, while the others receive theirs.
    """
    trial = Trial(job, job.seed, facts={"torn": [], "refused": [], "deviation": 0})
    draw = draw_for(job.seed, "faults")
    kinds = [_KINDS[number % len(_KINDS)] for number in range(num_faults)]
    drawn = sorted((draw.randrange(job.num_batches - _LAST_BATCHES), kind) for kind in kinds)
    plan = [_Planned(batch, kind, draw.randrange(job.num_workers)) for batch, kind in drawn]
    return run_trial(_Workers(trial, draw, plan, open_store, server_pids), trial, num_faults=num_faults)


class _Planned(NamedTuple):
    batch: int
    """The worker has submitted this batch, perhaps a few more."""
    kind: str
    worker: int


@dataclass(slots=True)
class _Worker:
    """One worker with all of its incarnations."""

    number: int
    limit: BatchLimit = field(default_factory=BatchLimit)
    children: list[Child] = field(default_factory=list)
    """The last one is the current incarnation."""
    replaced: dict[int, int] = field(default_factory=dict)
    """Index of a replaced process -> the last batch that it had reported when it was stopped."""

    @property
    def child(self) -> Child:
        return self.children[-1]

    @property
    def reached(self) -> int:
        """The last batch that the current process has submitted."""
        told = self.child.told()
        return int(told.get("batch", told.get("resumed", 0) - 1))


class _Workers(Topology[CountingJob]):
    def __init__(
        self,
        trial: Trial[CountingJob],
        draw: random.Random,
        plan: Sequence[_Planned],
        open_store: OpenStore,
        server_pids: Sequence[int],
    ) -> None:
        super().__init__(trial, draw, _HANG_SECONDS, poll_seconds=_POLL_SECONDS)
        self._plan = plan
        self._open_store = open_store
        self._server_pids = server_pids
        self._workers = [_Worker(number) for number in range(trial.scenario.num_workers)]

    def start(self) -> None:
        """Starts all workers."""
        for worker in self._workers:
            self._set_limit(worker, 0)
            self._start(worker)

    def look(self) -> None:
        """Does nothing: `progress` raises the errors of workers."""

    def progress(self) -> object:
        """Returns the batches of all workers."""
        return [(len(worker.children), worker.reached) for worker in self._workers]

    def due(self, number: int) -> Fault:
        """Waits for the batch of the next fault."""
        planned = self._plan[number]
        worker = self._workers[planned.worker]
        self.wait(lambda: worker.child.has_ended() or worker.reached >= planned.batch, f"batch {planned.batch}")
        if worker.child.has_ended():  # it ended before the check: the fault hits it during its restart
            self._end(worker)
            self._start(worker)
        time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        return Fault(kind=planned.kind, role=f"worker-{worker.number}")

    def inject(self, fault: Fault) -> None:
        """Kills, replaces or pauses a worker."""
        number = len(self._trial.faults)
        worker = self._workers[self._plan[number - 1].worker]
        if fault.kind == "kill":
            self._kill(worker)
        elif fault.kind == "replace":
            self._replace(worker)
        else:
            worker.child.send(signal.SIGSTOP)
            time.sleep(self._draw.uniform(0.0, _MOST_PAUSE_SECONDS))
            worker.child.send(signal.SIGCONT)
        self._set_limit(worker, number)

    def finish(self) -> None:
        """Waits until all workers have ended, and checks how."""
        self.wait(lambda: all(each.has_ended() for w in self._workers for each in w.children), "the end of workers")
        for worker in self._workers:
            self._end(worker)
            for index, stopped_at in worker.replaced.items():
                self._end_replaced(worker, index, stopped_at=stopped_at)

    def judge(self) -> list[str]:
        """Checks the counts."""
        job, torn = self._scenario, self._trial.facts["torn"]
        found = result_of(self._count_differences)
        deviation = self._trial.facts["deviation"] = found["deviation"]
        problems = []
        if max(torn) > job.in_flight:
            problems.append(f"{max(torn)} batches of a worker were torn, only {job.in_flight} were in flight")
        if job.deterministic:
            problems += found["wrong"][:5]
        elif deviation > sum(torn) * job.batch_size:
            problems.append(
                f"{deviation} occurrences lost or doubled, but only {sum(torn)} batches of {job.batch_size}"
                " were in flight when workers ended"
            )
        return problems

    def close(self) -> None:
        """Kills running workers."""
        for worker in self._workers:
            for child in worker.children:
                child.close()

    def _set_limit(self, worker: _Worker, number: int) -> None:
        """Lets a worker go a little beyond its next fault, from the given number of the plan on."""
        later = (each.batch + _MOST_AHEAD for each in self._plan[number:] if each.worker == worker.number)
        worker.limit.set(next(later, self._scenario.num_batches))

    def _kill(self, worker: _Worker) -> None:
        paused = self._draw.choice(self._server_pids) if self._server_pids and self._draw.random() < 0.5 else None
        try:
            if paused is not None:
                os.kill(paused, signal.SIGSTOP)
                time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
            worker.child.kill()
            self._end(worker)
            self._start(worker)
            if paused is not None:  # its pending requests then race with the join of the new process
                time.sleep(self._draw.uniform(0.0, _MOST_PAUSE_SECONDS))
        finally:
            if paused is not None:
                os.kill(paused, signal.SIGCONT)

    def _replace(self, worker: _Worker) -> None:
        old = worker.child
        self._await_join(old)
        old.send(signal.SIGSTOP)
        worker.replaced[len(worker.children) - 1] = old.told().get("batch", -1)
        self._start(worker)
        self._await_join(worker.child)
        old.send(signal.SIGCONT)

    def _await_join(self, child: Child) -> None:
        self.wait(lambda: "resumed" in child.told() or child.has_ended(), "a join")

    def _end(self, worker: _Worker) -> None:
        told = worker.child.told()
        if "torn" in told:
            self._trial.facts["torn"].append(told["torn"])
        refused = told.get("result", {}).get("refused")
        if refused is not None:
            self._trial.problems.append(
                f"worker {worker.number} was refused, but no other process had replaced it: {refused}"
            )

    def _end_replaced(self, worker: _Worker, index: int, *, stopped_at: int) -> None:
        told = worker.children[index].told()
        self._trial.facts["torn"].append(told.get("torn", 0))
        result = told.get("result", {})
        if "refused" in result:
            self._trial.facts["refused"].append(result["refused"])
        elif stopped_at < self._scenario.num_batches - 1 - self._scenario.in_flight:
            self._trial.problems.append(
                f"worker {worker.number}: a process that was replaced was not refused: {result}"
            )

    def _start(self, worker: _Worker) -> None:
        worker.children.append(Child(partial(self._count, worker, len(worker.children))))

    # In the children

    def _count(self, worker: _Worker, life: int, tell: Tell) -> dict[str, Any]:
        torch.set_num_threads(1)
        with self._open_store() as store:
            return self._scenario.work(store, worker.number, life=life, limit=worker.limit, tell=tell)

    def _count_differences(self, _: Tell) -> dict[str, Any]:
        with self._open_store() as store:
            return {"wrong": self._scenario.miscounts(store), "deviation": self._scenario.deviation(store)}
