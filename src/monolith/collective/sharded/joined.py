"""One incarnation of a worker at rows that the ranks share: its calls run in the line, with those of other ranks.

In an update gradients travel to the owners of the rows, which sum them and make one step.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from monolith.collective.lock_step import Call
from monolith.collective.sharded.calls import raise_failures, settled
from monolith.collective.sharded.exchange import UpdateTimes
from monolith.collective.sharded.owner import IdMessage, OwnerStep, RankPush, ShardedPlan
from monolith.errors import DeadlineExceededError, InternalError
from monolith.tables import Applied, time_array
from monolith.tables.local import (
    NO_TICKET,
    NativeSession,
    prepare_update,
    require_finite,
    require_not_discarded,
    stamp_from_core,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.collective.lock_step import Agreed
    from monolith.collective.serial_executor import LineCall
    from monolith.collective.sharded.exchange import RowExchange
    from monolith.collective.sharded.owner import SentIds
    from monolith.collective.sharded.store import ShardedStore
    from monolith.tables import Cut, Pending, Plan, Rows, Update
    from monolith.tables.local import PreparedUpdate

_SUBJECT = "sharded store"
_WORDS, _TICKET, _OLDEST, _PREVIOUS, _FIRST_SEQ, _INCARNATION, _SCALE, _TIME, _NEWEST = range(9)
"""Numbers of its update that each rank sends to each owner; the times are those of `UpdateTimes`."""
_SENDS_IDS, _IS_AHEAD, _IS_UNSURE, _IS_REFUSED = (1 << bit for bit in range(4))
_HEAD = struct.Struct("<q?")
_LARGE_SCALE = 2.0**32


class ShardedWorkerSession(NativeSession[ShardedPlan]):
    """`monolith.tables.store.WorkerSession` at a `ShardedStore`. Thread-safe.

    Reads and updates are submitted to the line and return; there they run in order, together with the reads and updates
    of the other ranks. Joining and discarding make no call to other ranks.
    """

    def __init__(self, store: ShardedStore, worker: int) -> None:
        self._store: ShardedStore = store
        self._core = store.native.core
        self.worker = worker
        self._incarnation, stamp = store.join_here(worker)
        self.applied = None if stamp is None else stamp_from_core(stamp)
        self.applied_by_server = [self.applied for owned in store.owned if owned]
        """Its last batch at each rank that has buckets; the same everywhere, since all ranks see every update."""
        self.next_seq = 0 if stamp is None else stamp.seq + 1
        self._lock = threading.Lock()
        self._pushes: deque[_Push] = deque()

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        """Reads the rows of the plan; owners keep the plan, with the locations of its rows, for the update."""
        own = self._own(plan)
        if train:
            self._core.require_current(self.worker, self._incarnation)
            self._store.plans.open(own)
            self._store.exchange.tickets.open(own)
        return self._store.submit_read(own, after=after, step=step, train=train)

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        """Submits one optimizer step per id; all ranks with a batch make it together."""
        plans = [self._own(plan) for plan, _ in updates]
        times = time_array(rule.times, (sum(plan.core.num_ids for plan in plans),), _SUBJECT)
        native = self._store.native
        gradients = [gradient for _, gradient in updates]
        update = prepare_update(native, plans, gradients, rule, times, incarnation=self._incarnation, subject=_SUBJECT)
        if len(plans) == 1:
            message = plans[0].message
        else:
            last = max((plan.stamp for plan in plans), key=lambda stamp: stamp.seq)
            message = IdMessage(self._store.parts_of(update.plan), last)
        push = _Push(self._store.submit_update(HandedOver(plans, update, message)))
        with self._lock:
            while self._pushes and self._pushes[0].is_over:
                self._pushes.popleft()
            self._pushes.append(push)
        return push

    def discard(self, plan: Plan) -> None:
        """Ends a training plan without an update; the owners are notified with the next call."""
        own = self._own(plan)
        self._store.plans.discard(own)
        self._store.exchange.tickets.close(own)

    def flush(self, *, timeout_seconds: float) -> int:
        """Waits for every submitted update; returns the last batch, which all owners have."""
        self._core.require_current(self.worker, self._incarnation)
        end = time.monotonic() + timeout_seconds
        with self._lock:
            pushes = list(self._pushes)
        for push in pushes:
            push.wait(max(0.0, end - time.monotonic()))
        with self._lock:
            self._pushes.clear()
        for push in pushes:
            push.raise_untold()
        return self._core.last_applied(self.worker)

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """Freezes the rows and stamps of all ranks, with every submitted update."""
        self.flush(timeout_seconds=timeout_seconds)
        return self._store.cut(timeout_seconds=timeout_seconds)

    def evict(self, *, now: int) -> int:
        """Removes expired rows on all ranks."""
        self._core.require_current(self.worker, self._incarnation)
        return self._store.evict(now=now)


class _Push:
    """`monolith.tables.batch.Pending` of an update; records whether its error was raised to a caller."""

    def __init__(self, call: LineCall[Applied]) -> None:
        self._call = call
        self._was_told = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and no error remains to be raised."""
        return self._call.done() and (self._was_told or self._error() is None)

    def done(self) -> bool:
        """Returns True iff `result` returns without waiting."""
        return self._call.done()

    def result(self, timeout_seconds: float | None = None) -> Applied:
        """Returns the result of the update."""
        self.wait(timeout_seconds)
        self._was_told = True
        return self._call.result()

    def wait(self, timeout_seconds: float | None) -> None:
        """Returns when the update has ended, with or without an error.

        Raises:
            DeadlineExceededError: it has not ended in time.
        """
        try:
            self._call.result(timeout_seconds)
        except DeadlineExceededError:
            if not self._call.done():
                raise
        except Exception:  # noqa: BLE001, S110 - raised by `result`
            pass

    def raise_untold(self) -> None:
        """Raises the error of the update, unless it was raised before."""
        if not self._was_told:
            self._was_told = True
            self._call.result()

    def _error(self) -> Exception | None:
        try:
            self._call.result()
        except Exception as error:  # noqa: BLE001 - only inspected
            return error
        return None


class HandedOver(NamedTuple):
    """The submitted update of this rank."""

    plans: Sequence[ShardedPlan]
    update: PreparedUpdate
    message: IdMessage
    """The ids of all its plans."""


class RankUpdates:
    """The updates of a store. Used by the line's thread.

    With `takes_mean` the sum of the gradients is divided by the number of ranks with a batch.
    """

    def __init__(
        self, exchange: RowExchange, *, name: str, takes_mean: bool, on_applied: Callable[[HandedOver], None]
    ) -> None:
        self._exchange = exchange
        self._owner = exchange.owner
        self._native = exchange.native
        self._core = exchange.native.core
        self._wire = exchange.wire
        self.kind = f"update {name}"
        self._takes_mean = takes_mean
        self._on_applied = on_applied

    def make(self, own: HandedOver) -> Applied:
        """Makes the update of this rank together with those of the other ranks."""
        flags, refusal = self._look_at(own)
        update = own.update
        times = update.times
        clock = self._exchange.clock
        flags |= _IS_AHEAD * clock.is_ahead(times)
        ticket = own.plans[0].ticket if len(own.plans) == 1 else NO_TICKET
        flags |= _SENDS_IDS * (ticket == NO_TICKET)
        numbers = np.empty((self._wire.size, _NEWEST + 1), np.int64)
        numbers[:] = (
            0,
            ticket,
            self._exchange.tickets.oldest,
            update.previous,
            update.first_seq,
            update.incarnation,
            _bits_of(update.scale),
            times[0] if len(times) == 1 else -1,
            times.max() if update.plan.num_ids else -1,
        )
        if ticket == NO_TICKET:
            numbers[:, _WORDS] = own.message.num_words
        has_latest = update.latest is not None
        arguments = _HEAD.pack(update.step, has_latest) + update.rates.tobytes()
        return self._exchange.lock_step.run(
            Call(self.kind, arguments=arguments),
            work=lambda agreed: self._take_part(agreed, arguments, own, refusal),
            sizes=torch.from_numpy(numbers),
            flags=flags,
        )

    def follow(self, agreed: Agreed, arguments: bytes) -> Applied:
        """Takes part in the update of the other ranks, at a rank without one."""
        return self._take_part(agreed, arguments, None, None)

    def _look_at(self, own: HandedOver) -> tuple[int, Exception | None]:
        """Checks the update; returns flags for the other ranks, and the error if it cannot be made."""
        update = own.update
        try:
            self._core.require_current(update.stamp.worker, update.incarnation)
            require_not_discarded(own.plans, self._exchange.subject)
            if _is_surely_finite(update.gradient, update.scale):
                return 0, None
            if not self._core.is_duplicate([update.push]):
                require_finite(self._native, update.plan, update.gradient, update.scale)
        except Exception as error:  # noqa: BLE001 - all ranks raise it
            return _IS_REFUSED, error
        return _IS_UNSURE, None

    def _take_part(
        self, agreed: Agreed, arguments: bytes, own: HandedOver | None, refusal: Exception | None
    ) -> Applied:
        if agreed.flags & _IS_REFUSED:
            raise_failures(self._wire, refusal)
        step, has_latest = _HEAD.unpack_from(arguments)
        numbers = agreed.sizes.tolist()
        pushes = {rank: _push_of(numbers[rank]) for rank, is_active in enumerate(agreed.active) if is_active}
        sent = self._ids(agreed, numbers, pushes, own)
        times = UpdateTimes(
            self._exchange,
            {rank: (numbers[rank][_TIME], numbers[rank][_NEWEST]) for rank in pushes},
            None if own is None else own.update,
        )
        if agreed.flags & _IS_AHEAD:
            times.bound()
        of_rows = times.of_rows(sent, None if own is None else own.message)
        message = None if own is None else own.message
        gradients = self._exchange.floats(sent, message, None if own is None else own.update.gradient)
        total, is_finite = self._owner.total_of(sent, gradients, pushes)
        latest = None
        if has_latest:
            seen = self._exchange.floats(sent, message, None if own is None else own.update.latest)
            latest = self._owner.first_of(sent, seen)
        prepared = OwnerStep(
            sent=sent,
            total=total,
            latest=latest,
            rates=np.frombuffer(arguments, np.float32, offset=_HEAD.size),
            step=step,
            times=of_rows,
            newest_time=times.newest,
            scale=1.0 / len(pushes) if self._takes_mean else 1.0,
            is_finite=is_finite,
        )
        if agreed.flags & _IS_UNSURE:
            settled(self._wire, lambda: self._require_finite(prepared, pushes))
        applied = self._apply(prepared, pushes)
        if not applied.duplicate:
            times.count()
        if own is not None:
            self._on_applied(own)
        for rank in pushes:
            self._owner.forget(rank, numbers[rank][_OLDEST])
        return applied

    def _ids(
        self, agreed: Agreed, numbers: list[list[int]], pushes: dict[int, RankPush], own: HandedOver | None
    ) -> SentIds:
        sent = None
        if agreed.flags & _SENDS_IDS:
            sends = own is not None and pushes[self._wire.rank].ticket == NO_TICKET
            sent = self._exchange.ids(
                own.message if own is not None and sends else None, [row[_WORDS] for row in numbers]
            )
        return self._owner.pushed(pushes, sent)

    def _require_finite(self, step: OwnerStep, pushes: dict[int, RankPush]) -> bytes:
        """Raises if the sum is not finite; no owner has changed anything yet."""
        if not step.is_finite and not self._owner.is_duplicate(step, pushes):
            require_finite(self._native, step.sent.merged.plan, step.total, step.scale)
        return b""

    def _apply(self, step: OwnerStep, pushes: dict[int, RankPush]) -> Applied:
        """Applies the update; returns the result over all owners."""
        failure, applied = None, Applied()
        try:
            applied = self._owner.apply(step, pushes)
        except Exception as error:  # noqa: BLE001 - all ranks receive it
            failure = error
        mine = (
            failure is not None,
            applied.updated,
            applied.inserted,
            applied.filtered,
            applied.skipped,
            applied.duplicate,
        )
        results = torch.stack(self._wire.gather(torch.tensor(mine, dtype=torch.int64)))
        failed, updated, inserted, filtered, skipped, duplicates = results.sum(0).tolist()
        if failed == self._wire.size:
            raise_failures(self._wire, failure)
        if failed:
            raise failure or InternalError(
                f"{self._exchange.subject}: {failed} of {self._wire.size} ranks could not make an update that the"
                " others have made: see their logs, and start again from the last checkpoint"
            )
        return Applied(updated=updated, inserted=inserted, filtered=filtered, skipped=skipped, duplicate=duplicates > 0)


def _is_surely_finite(gradient: NDArray[np.float32], scale: float) -> bool:
    """Returns whether the sum over all ranks must be finite. A fast check, since every update needs it.

    If the sum of squares is finite, no gradient is beyond 2^64, so the sum of up to 2^31 ranks with a factor below 2^32
    cannot overflow.
    """
    flat = torch.from_numpy(gradient)
    return abs(scale) < _LARGE_SCALE and math.isfinite(torch.dot(flat, flat).item())


def _push_of(numbers: Sequence[int]) -> RankPush:
    return RankPush(
        ticket=numbers[_TICKET],
        first_seq=numbers[_FIRST_SEQ],
        previous=numbers[_PREVIOUS],
        incarnation=numbers[_INCARNATION],
        scale=_float_of(numbers[_SCALE]),
    )


def _bits_of(scale: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", scale))[0]
    return bits


def _float_of(bits: int) -> float:
    scale: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return scale
