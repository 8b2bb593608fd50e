"""One read of all ranks: ids travel to the owners of the rows, and the rows are returned."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.collective.lock_step import Call
from monolith.collective.serial_executor import RaisedByAllError
from monolith.errors import FailedPreconditionError
from monolith.tables.batch import NOTHING_APPLIED
from monolith.tables.local.plan import NO_TICKET, LocalRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from monolith.collective.lock_step import Agreed
    from monolith.collective.sharded.exchange import RowExchange
    from monolith.collective.sharded.owner import SentIds
    from monolith.collective.sharded.plan import ShardedPlan

__all__ = ["RankReads"]

_WORDS, _TICKET, _OLDEST = range(3)
"""Numbers of its read that each rank sends to each owner."""
_HEAD = struct.Struct("<q?")


class RankReads:
    """The reads of a store. Used by the line's thread."""

    def __init__(self, exchange: RowExchange, *, name: str) -> None:
        self._exchange = exchange
        self.kind = f"read {name}"
        self.on_training: Callable[[ShardedPlan, SentIds], None] | None = None
        """Called with every read for training of this rank."""

    def look(self, plan: ShardedPlan, step: int) -> LocalRows:
        """Reads rows without training."""
        return LocalRows(torch.from_numpy(self._make(plan, step, is_training=False)), NOTHING_APPLIED)

    def make(self, plan: ShardedPlan, *, after: int, step: int, train: bool) -> LocalRows:
        """Reads the rows of a worker's plan.

        Raises:
            RaisedByAllError: `after` was not applied; the other ranks have their rows.
        """
        worker = plan.stamp.worker
        seen = self._exchange.native.core.last_applied(worker)
        values = self._make(plan, step, is_training=train)
        if after > seen:
            raise RaisedByAllError(
                FailedPreconditionError(
                    f"{self._exchange.subject}: cannot read after batch {after} of worker {worker}: its last applied"
                    f" batch is {seen}; apply it first"
                )
            )
        return LocalRows(torch.from_numpy(values), seen)

    def follow(self, agreed: Agreed, arguments: bytes) -> None:
        """Takes part in the read of the other ranks, at a rank without one."""
        self._take_part(agreed, arguments, None)

    def _make(self, plan: ShardedPlan, step: int, *, is_training: bool) -> NDArray[np.float32]:
        numbers = np.empty((self._exchange.wire.size, _OLDEST + 1), np.int64)
        numbers[:, _WORDS] = plan.message.num_words
        numbers[:, _TICKET] = plan.ticket
        numbers[:, _OLDEST] = self._exchange.tickets.oldest
        arguments = _HEAD.pack(step, is_training)
        values = self._exchange.lock_step.run(
            Call(self.kind, arguments=arguments),
            work=lambda agreed: self._take_part(agreed, arguments, plan),
            sizes=torch.from_numpy(numbers),
        )
        assert values is not None  # noqa: S101 - the plan was given
        return values

    def _take_part(self, agreed: Agreed, arguments: bytes, plan: ShardedPlan | None) -> NDArray[np.float32] | None:
        step, is_training = _HEAD.unpack(arguments)
        numbers = agreed.sizes.tolist()
        sent = self._exchange.ids(None if plan is None else plan.message, [row[_WORDS] for row in numbers])
        values = self._exchange.rows(plan, sent, step)
        owner = self._exchange.owner
        ranks = [rank for rank, is_active in enumerate(agreed.active) if is_active]
        for rank in ranks:
            owner.forget(rank, numbers[rank][_OLDEST])
        if is_training:
            if plan is not None and self.on_training is not None:
                self.on_training(plan, sent)
            tickets = {rank: numbers[rank][_TICKET] for rank in ranks}
            owner.keep(sent, {rank: ticket for rank, ticket in tickets.items() if ticket != NO_TICKET})
        return values
