"""Workers of parameter servers that are killed, paused and replaced while they count, and checks of the counts."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from system.crash.batch_limit import BatchLimit
from system.crash.child import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from monolith.tables import Store
    from system.crash.child import Tell
    from system.crash.counting import CountingJob

__all__ = ["Fault", "WorkerTrial", "run_worker_trial"]

_POLL_SECONDS = 0.001
_LAST_BATCHES = 40
"""The last fault of a worker comes before its last batches, so that it hits a worker that still has work."""
_MOST_AHEAD = 20
"""Batches that a worker may be beyond the next fault, so that a fast machine does not outrun the faults."""
_MOST_DELAY_SECONDS = 0.01
"""After the batch at which a fault is due, so that it hits a worker anywhere in a step."""
_MOST_PAUSE_SECONDS = 0.3

FaultKind = Literal["kill", "pause", "replace"]
_KINDS: tuple[FaultKind, ...] = ("kill", "pause", "kill", "replace", "kill")
"""Kinds of faults, cycled; their times and targets are random."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A fault of a worker, and its time."""

    batch: int
    """The worker has submitted this batch, perhaps a few more."""
    kind: FaultKind
    """``kill``: SIGKILL and a restart. ``pause``: SIGSTOP, and SIGCONT some time later. ``replace``: SIGSTOP, another
    process is started under its number, and SIGCONT wakes the old one, which must be rejected.
    """


@dataclass(slots=True)
class WorkerTrial:
    """One run, and its results."""

    job: CountingJob
    faults: dict[str, int] = field(default_factory=lambda: {"kill": 0, "pause": 0, "replace": 0})
    torn: list[int] = field(default_factory=list)
    """For each start of a worker, the number of its batches that some servers had and others had not."""
    refused: list[str] = field(default_factory=list)
    """Errors of workers that had been replaced."""
    problems: list[str] = field(default_factory=list)
    deviation: int = 0
    """Number of occurrences by which all rows together differ from the data."""

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost and nothing counted twice."""
        return not self.problems


def run_worker_trial(
    job: CountingJob,
    *,
    num_faults: int,
    open_store: Callable[[], AbstractContextManager[Store]],
    server_pids: Sequence[int] = (),
) -> WorkerTrial:
    """Runs the workers of a job with `num_faults` faults, and checks the counts. Servers must be empty.

    The parent must have one thread, and no connection to the servers: workers are forked from it.

    Args:
        job: Input of the workers.
        num_faults: Total number of faults; their times are drawn from the job's seed.
        open_store: Called in each worker; opens a store at the servers, closed when the worker ends.
        server_pids: Servers of which one is paused around every second kill: requests of the worker to it may then get
            lost, while the others receive theirs.
    """
    draw = random.Random(f"{job.seed} faults")  # noqa: S311 - repeatable times, not secrets
    faults: list[deque[Fault]] = [deque() for _ in range(job.num_workers)]
    kinds = [_KINDS[number % len(_KINDS)] for number in range(num_faults)]
    drawn = [Fault(draw.randrange(job.num_batches - _LAST_BATCHES), kind) for kind in kinds]
    for fault in sorted(drawn):
        draw.choice(faults).append(fault)
    trial = WorkerTrial(job)
    with ExitStack() as closing:
        workers = [
            _Worker(
                trial,
                number,
                faults=faults[number],
                draw=draw,
                open_store=open_store,
                server_pids=server_pids,
                closing=closing,
            )
            for number in range(job.num_workers)
        ]
        counting = workers
        while counting:
            counting = [worker for worker in counting if not worker.look()]
            time.sleep(_POLL_SECONDS)
    if max(trial.torn) > job.in_flight:
        trial.problems.append(f"{max(trial.torn)} batches of a worker were torn, only {job.in_flight} were in flight")
    judged = _judge(job, open_store)
    trial.deviation = judged["deviation"]
    if job.deterministic:
        trial.problems += judged["wrong"][:5]
    elif trial.deviation > sum(trial.torn) * job.batch_size:
        trial.problems.append(
            f"{trial.deviation} occurrences lost or doubled, but only {sum(trial.torn)} batches of {job.batch_size}"
            " were in flight when workers ended"
        )
    return trial


class _Worker:
    """One worker with all of its incarnations."""

    def __init__(
        self,
        trial: WorkerTrial,
        number: int,
        *,
        faults: deque[Fault],
        draw: random.Random,
        open_store: Callable[[], AbstractContextManager[Store]],
        server_pids: Sequence[int],
        closing: ExitStack,
    ) -> None:
        self._trial = trial
        self._number = number
        self._faults = faults
        self._draw = draw
        self._open_store = open_store
        self._server_pids = server_pids
        self._closing = closing
        self._lives = 0
        self._limit = BatchLimit()
        self._set_limit()
        self._replaced: dict[Child, int] = {}
        """Replaced processes that still run -> the last batch that each had reported when it was stopped."""
        self._child = self._start()

    def look(self) -> bool:
        """Injects a fault that is due; returns True when the worker has ended, and all of its faults are over."""
        for child in [child for child in self._replaced if child.has_ended()]:
            self._end_replaced(child, stopped_at=self._replaced.pop(child))
        told = self._child.told()
        has_ended = self._child.has_ended()
        reached = told.get("batch", told.get("resumed", 0) - 1)
        if self._faults and (has_ended or reached >= self._faults[0].batch):
            self._befall(self._faults.popleft().kind)
            self._set_limit()
            return False
        if has_ended and not self._faults and not self._replaced:
            self._end(self._child)
            return True
        return False

    def _set_limit(self) -> None:
        self._limit.set(self._faults[0].batch + _MOST_AHEAD if self._faults else self._trial.job.num_batches)

    def _befall(self, kind: FaultKind) -> None:
        if self._child.has_ended():  # it ended before the check: the fault hits it during its restart
            self._end(self._child)
            self._child = self._start()
        time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        self._trial.faults[kind] += 1
        if kind == "kill":
            self._kill()
        elif kind == "replace":
            self._replace()
        else:
            self._child.send(signal.SIGSTOP)
            time.sleep(self._draw.uniform(0.0, _MOST_PAUSE_SECONDS))
            self._child.send(signal.SIGCONT)

    def _kill(self) -> None:
        paused = self._draw.choice(self._server_pids) if self._server_pids and self._draw.random() < 0.5 else None
        try:
            if paused is not None:
                os.kill(paused, signal.SIGSTOP)
                time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
            self._child.kill()
            self._end(self._child)
            self._child = self._start()
            if paused is not None:  # its pending requests then race with the join of the new process
                time.sleep(self._draw.uniform(0.0, _MOST_PAUSE_SECONDS))
        finally:
            if paused is not None:
                os.kill(paused, signal.SIGCONT)

    def _replace(self) -> None:
        old = self._child
        self._await_join(old)
        old.send(signal.SIGSTOP)
        self._replaced[old] = old.told().get("batch", -1)
        self._child = self._start()
        self._await_join(self._child)
        old.send(signal.SIGCONT)

    def _await_join(self, child: Child) -> None:
        while "resumed" not in child.told() and not child.has_ended():
            time.sleep(_POLL_SECONDS)

    def _end(self, child: Child) -> None:
        told = child.told()
        if "torn" in told:
            self._trial.torn.append(told["torn"])
        refused = told.get("result", {}).get("refused")
        if refused is not None:
            self._trial.problems.append(
                f"worker {self._number} was refused, but no other process had replaced it: {refused}"
            )

    def _end_replaced(self, child: Child, *, stopped_at: int) -> None:
        told = child.told()
        self._trial.torn.append(told.get("torn", 0))
        result = told.get("result", {})
        if "refused" in result:
            self._trial.refused.append(result["refused"])
        elif stopped_at < self._trial.job.num_batches - 1 - self._trial.job.in_flight:
            self._trial.problems.append(f"worker {self._number}: a process that was replaced was not refused: {result}")

    def _start(self) -> Child:
        life, self._lives = self._lives, self._lives + 1
        child = Child(partial(self._count, life))
        self._closing.callback(child.close)
        return child

    def _count(self, life: int, tell: Tell) -> dict[str, Any]:
        """Counts the batches of a worker; runs in the child."""
        torch.set_num_threads(1)
        with self._open_store() as store:
            return self._trial.job.work(store, self._number, life=life, limit=self._limit, tell=tell)


def _judge(job: CountingJob, open_store: Callable[[], AbstractContextManager[Store]]) -> dict[str, Any]:
    """Checks the counts in a process of its own, so that the parent has no connections."""

    def look(_: Tell) -> dict[str, Any]:
        with open_store() as store:
            return {"wrong": job.miscounts(store), "deviation": job.deviation(store)}

    child = Child(look)
    try:
        child.wait()
        judged: dict[str, Any] = child.told()["result"]
    finally:
        child.close()
    return judged
