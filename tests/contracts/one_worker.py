"""A worker that trains tables of two weights by SGD with a learning rate of 1, so that rows can be written down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from monolith.tables import Segment, TableConfig
from monolith.tables.batch import NOTHING_APPLIED, Applied, BatchStamp, Plan, Update
from monolith.tables.formats.row_block import BlockKind, RowBlock
from monolith.tables.history import ALL_BUCKETS, ChangeReader
from monolith.tables.row_optimizers import Sgd
from monolith.tables.store import Store

ONE_TABLE = {"user": TableConfig([Segment(2, optimizer=Sgd())], expire_days=1)}
DAY = 86400


def stamp(seq: int, worker: int = 0) -> BatchStamp:
    return BatchStamp(worker=worker, seq=seq, position=b"%d/%d" % (worker, seq), event_time_ms=seq)


def rule(previous: int, *, segments: int = 1, scale: float = 1.0, time: int = 0) -> Update:
    return Update(previous=previous, step=0, learning_rates=torch.ones(segments), times=time, scale=scale)


class Worker:
    """One incarnation of a worker, and what it has pushed."""

    def __init__(self, store: Store, number: int = 0) -> None:
        self.session = store.join(number)
        self.number = number
        self.last = NOTHING_APPLIED if self.session.applied is None else self.session.applied.seq

    def plan(self, ids: Sequence[int], seq: int) -> Plan:
        flat = torch.tensor(ids, dtype=torch.int64)
        return self.session.plan(flat, torch.tensor([0, len(ids)]), stamp=stamp(seq, self.number))

    def push(self, plan: Plan, value: float = 1.0, *, previous: int | None = None, time: int = 0) -> Applied:
        gradient = torch.full((plan.num_values,), value)
        how = rule(self.last if previous is None else previous, time=time)
        applied = self.session.apply([(plan, gradient)], how).result()
        self.last = max(self.last, plan.stamp.seq)
        return applied

    def train(self, ids: Sequence[int], value: float = 1.0, *, time: int = 0) -> Applied:
        """Reads and applies the next batch; a gradient of 1 moves both weights by -1."""
        plan = self.plan(ids, self.last + 1)
        self.session.read(plan, after=self.last, step=0, train=True).result()
        return self.push(plan, value, time=time)


def rows_of(store: Store, ids: Sequence[int]) -> list[list[float]]:
    flat = torch.tensor(ids, dtype=torch.int64)
    plan = store.plan(flat, torch.tensor([0, len(ids)]), stamp=stamp(2**40))
    values = store.read(plan, step=0).result().values.cpu()
    rows: list[list[float]] = values.reshape(-1, 2)[plan.inverse.long()].tolist()
    return rows


def blocks_of(store: Store) -> list[RowBlock]:
    with store.cut() as cut:
        return list(cut.blocks(ALL_BUCKETS, state=True))


def keys(blocks: Iterable[RowBlock]) -> tuple[list[int], list[int]]:
    """Ids of rows, and ids that are gone."""
    rows: set[int] = set()
    removed: set[int] = set()
    for block in blocks:
        if block.kind is BlockKind.TOMBSTONE:
            removed |= set(block.keys.tolist())
        elif block.kind is not BlockKind.FILTER:
            rows |= set(block.keys.tolist())
    return sorted(rows), sorted(removed - rows)


def follow(reader: ChangeReader) -> tuple[list[int], list[int]]:
    """One round of a follower: ids that changed, and ids that are gone."""
    reached = reader.next_mark()
    found = keys(reader.changes(state=True))
    reader.advance(reached)
    return found
