"""One worker at an engine and at the reference."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from monolith.tables.batch import NOTHING_APPLIED, BatchStamp, Update
from monolith.testing.contract_sides import refusal
from monolith.testing.store_contents import require_close, require_same
from monolith.testing.store_operations import Apply, OperationBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.tables.batch import Applied, Plan
    from monolith.tables.store import WorkerSession
    from monolith.testing.contract_sides import Sides

_TIMEOUT_SECONDS = 30.0


class _OpenBatch(NamedTuple):
    """A batch that was read for training."""

    batch: OperationBatch
    stamp: BatchStamp
    plans: tuple[Plan, Plan]
    values: tuple[torch.Tensor, torch.Tensor]


class ContractWorker:
    """Trains on both sides alike, and tracks which batches must have been applied."""

    def __init__(self, sides: Sides, number: int) -> None:
        self._sides = sides
        self._number = number
        self._open: list[_OpenBatch] = []
        self._step = 0
        self._last = NOTHING_APPLIED
        self._next_seq = 0
        self._join()

    def _join(self) -> None:
        engine, reference = (store.join(self._number) for store in self._sides.stores)
        self._session: tuple[WorkerSession, WorkerSession] = engine, reference
        stamp = self._sides.same("applied of the joining worker", self._session, lambda each: each.applied)
        self._last = NOTHING_APPLIED if stamp is None else stamp.seq
        self._next_seq = self._sides.same("next_seq of the joining worker", self._session, lambda each: each.next_seq)
        require_same("worker", self._sides.same("worker", self._session, lambda each: each.worker), self._number)

    # Operations

    def read(self, batch: OperationBatch) -> None:
        """Plans and reads a batch for training, and keeps it open."""
        self._open.append(self._read(batch, self._stamp()))

    def apply(self, how: Apply) -> None:
        """Applies all open batches."""
        if not self._open:
            return
        given, self._open = self._open, []
        previous = self._last
        engine, reference = self._push(given, how, previous)
        require_same("applied", engine, reference)
        require_same("applied: duplicate", engine.duplicate, False)
        self._last = given[-1].stamp.seq
        self._step += 1
        if how.retry:
            repeated = [self._read(each.batch, each.stamp) for each in given]
            again = self._push(repeated, how, previous)
            require_same("applied once more: duplicate", [each.duplicate for each in again], [True, True])

    def discard(self) -> None:
        """Discards all open batches."""
        self._discard(self._session)

    def lose_a_push(self, batch: OperationBatch, *, ahead: bool) -> None:
        """Pushes a batch that names a wrong predecessor: it must be rejected, and ends untrained."""
        lost = self._read(batch, self._stamp())
        wrong = self._last + 1 if ahead or self._last == NOTHING_APPLIED else self._last - 1
        for side, session in enumerate(self._session):
            said = refusal("a gap", session, lambda each: self._apply(each, side, [lost], Apply(), wrong))  # noqa: B023
            if self._last != NOTHING_APPLIED and str(self._last) not in said:
                raise AssertionError(f"a gap: the error must name the last batch, {self._last}, got {said!r}")
            session.discard(lost.plans[side])

    def evict(self, now: int) -> None:
        """Removes expired rows."""
        self._sides.same("evicted", self._session, lambda session: session.evict(now=now))

    def restart(self) -> None:
        """Joins again: its batches continue after the last applied one."""
        former, last = self._session, self._last
        self._join()
        require_same("last batch of the rejoined worker", self._last, last)
        self._refuse(former)

    def resume(self, *, in_place: bool) -> None:
        """Joins after a restore, other stores or the same ones, whose state has changed."""
        former = self._session
        if in_place:
            self._refuse(former)
        self._open = []
        self._join()

    def compare(self) -> None:
        """Compares the progress of both sides, as the worker sees it."""
        seen = self._sides.same("flushed", self._session, lambda each: each.flush(timeout_seconds=_TIMEOUT_SECONDS))
        require_same("flushed", seen, self._last)

    # Inside

    def _stamp(self) -> BatchStamp:
        seq = self._next_seq
        self._next_seq += 1
        return BatchStamp(worker=self._number, seq=seq, position=b"%d" % seq, event_time_ms=1000 * seq + 7)

    def _read(self, batch: OperationBatch, stamp: BatchStamp) -> _OpenBatch:
        plans = self._sides.plan(self._session, batch, stamp)
        rows = [
            session.read(plan, after=self._last, step=self._step, train=True).result()
            for session, plan in zip(self._session, plans, strict=True)
        ]
        engine, reference = (each.values for each in rows)
        require_same("last batch seen", [each.seen for each in rows], [self._last] * 2)
        require_close("rows for training", engine.numpy(), reference.numpy(), exact=self._sides.exact)
        return _OpenBatch(batch, stamp, plans, (engine, reference))

    def _push(self, given: Sequence[_OpenBatch], how: Apply, previous: int) -> tuple[Applied, Applied]:
        engine, reference = (
            self._apply(session, side, given, how, previous) for side, session in enumerate(self._session)
        )
        return engine, reference

    def _apply(
        self, session: WorkerSession, side: int, given: Sequence[_OpenBatch], how: Apply, previous: int
    ) -> Applied:
        plans = [each.plans[side] for each in given]
        times: list[int] = []
        for each, plan in zip(given, plans, strict=True):
            rng = np.random.default_rng(each.batch.seed)
            times += (how.time + rng.integers(0, 1000, len(plan.inverse))).tolist()
        latest = [self._sides.latest(each.plans[side], each.values[side]) for each in given]
        rule = Update(
            step=self._step,
            learning_rates=self._rates(),
            times=torch.tensor(times, dtype=torch.int64) if how.times_per_id else how.time,
            previous=previous,
            scale=how.scale,
            latest=None if None in latest else [rows for rows in latest if rows is not None],
        )
        gradients = [self._sides.gradient(plan, each.batch) for plan, each in zip(plans, given, strict=True)]
        return session.apply(list(zip(plans, gradients, strict=True)), rule).result()

    def _rates(self) -> torch.Tensor:
        return torch.from_numpy(np.linspace(0.05, 0.2, self._sides.schema.num_segments, dtype=np.float32))

    def _discard(self, handles: Sequence[WorkerSession]) -> None:
        given, self._open = self._open, []
        for each in given:
            for session, plan in zip(handles, each.plans, strict=True):
                session.discard(plan)

    def _refuse(self, former: tuple[WorkerSession, WorkerSession]) -> None:
        """Handles of an ended incarnation can discard their open batches, and nothing else."""
        self._discard(former)
        nothing = OperationBatch(ids=((),) * len(self._sides.configs))
        plans = self._sides.plan(former, nothing, BatchStamp(worker=self._number, seq=2**40))
        rule = Update(step=0, learning_rates=self._rates(), times=0, previous=self._last)
        for session, plan in zip(former, plans, strict=True):
            session.read(plan, after=NOTHING_APPLIED, step=0, train=False).result()
            calls: dict[str, Callable[[WorkerSession], object]] = {
                "read": partial(_read_for_training, plan=plan),
                "apply": partial(_apply_nothing, plan=plan, rule=rule),
                "flush": lambda each: each.flush(timeout_seconds=_TIMEOUT_SECONDS),
                "cut": lambda each: each.cut().release(),
                "evict": lambda each: each.evict(now=0),
            }
            for name, call in calls.items():
                refusal(f"{name} by a handle whose incarnation has ended", session, call)


def _read_for_training(session: WorkerSession, *, plan: Plan) -> object:
    return session.read(plan, after=NOTHING_APPLIED, step=0, train=True).result()


def _apply_nothing(session: WorkerSession, *, plan: Plan, rule: Update) -> object:
    return session.apply([(plan, torch.zeros(0))], rule).result()
