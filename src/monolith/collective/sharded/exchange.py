"""The exchanges of a store in a step: ids, rows, gradients; and the state that all its calls share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.collective.sharded.times import SharedClock
from monolith.tables.batch_memory import new_rows
from monolith.tables.local.plan import NO_TICKET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith.collective.lock_step import LockStep
    from monolith.collective.sharded.owner import RowOwner, SentIds
    from monolith.collective.sharded.plan import IdMessage, ShardedPlan
    from monolith.tables.local.native_tables import NativeTables

__all__ = ["RowExchange", "Tickets"]


class Tickets:
    """The numbers under which owners keep the open plans of this rank. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = NO_TICKET + 1
        self._open: dict[int, None] = {}

    @property
    def oldest(self) -> int:
        """The oldest open number; none before it is open."""
        with self._lock:
            return next(iter(self._open), self._next)

    def open(self, plan: ShardedPlan) -> None:
        """Assigns a number to a plan that is about to be read for an update; its previous number is released."""
        with self._lock:
            self._open.pop(plan.ticket, None)
            plan.ticket = self._next
            self._open[plan.ticket] = None
            self._next += 1

    def close(self, plan: ShardedPlan) -> None:
        """Releases the number of a plan that has ended, or whose read has failed."""
        with self._lock:
            self._open.pop(plan.ticket, None)
            plan.ticket = NO_TICKET


class RowExchange:
    """Exchanges of one store. Used by the line's thread.

    Args:
        lock_step: Of the line of training.
        native: The tables.
        owner: Owner of the rows of this rank.
        subject: For messages.
    """

    def __init__(self, lock_step: LockStep, native: NativeTables, owner: RowOwner, subject: str) -> None:
        self.lock_step = lock_step
        self.wire = lock_step.line.wire
        self.native = native
        self.owner = owner
        self.subject = subject
        self.clock = SharedClock()
        self.tickets = Tickets()
        self._nothing = [0] * self.wire.size

    def ids(self, message: IdMessage | None, num_words: Sequence[int]) -> SentIds:
        """Exchanges ids: returns those of all ranks for rows of this one; `num_words` is the size from each rank."""
        received = np.empty(sum(num_words), np.int64)
        self._move(
            received,
            _NO_WORDS if message is None else message.words,
            num_words,
            self._nothing if message is None else message.num_words,
        )
        return self.owner.take(received, num_words)

    def rows(self, plan: ShardedPlan | None, sent: SentIds, step: int) -> NDArray[np.float32] | None:
        """Sends rows to all ranks; returns the rows of this rank's plan."""
        answer, sizes = self.owner.read(sent, step)
        received = new_rows((0 if plan is None else plan.num_values,))
        self._move(received, answer, self._nothing if plan is None else plan.message.num_values, sizes)
        return None if plan is None else received

    def floats(
        self, sent: SentIds, message: IdMessage | None, values: NDArray[np.float32] | None
    ) -> list[NDArray[np.float32]]:
        """Exchanges a value per float of the rows, such as gradients; returns those of every rank for rows here."""
        sizes = [sent.merged.num_values(rank) for rank in range(self.wire.size)]
        received = new_rows((sum(sizes),))
        self._move(
            received,
            _NO_FLOATS if values is None else values,
            sizes,
            self._nothing if message is None else message.num_values,
        )
        return _split(received, sizes)

    def whole_numbers(
        self, values: NDArray[np.int64], sent_sizes: Sequence[int], sizes: Sequence[int]
    ) -> list[NDArray[np.int64]]:
        """Exchanges numbers; returns those of every rank."""
        received = np.empty(sum(sizes), np.int64)
        self._move(received, values, sizes, sent_sizes)
        return _split(received, sizes)

    def _move(
        self, received: NDArray[Any], sent: NDArray[Any], received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        self.wire.exchange(_tensor(received), _tensor(sent), received_sizes, sent_sizes)


def _split(array: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    parts, begin = [], 0
    for size in sizes:
        parts.append(array[begin : begin + size])
        begin += size
    return parts


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if array.size else torch.empty(0, dtype=tensor.dtype)  # an empty array has a stride of 0


_NO_WORDS = np.empty(0, np.int64)
_NO_FLOATS = np.empty(0, np.float32)
