"""Models whose rows say how often they were trained: with rate 1 and gradient 1, a row is minus its count, exactly."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Self

import torch
from torch import nn

import monolith as ml
from monolith.checkpoint import TrainState
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster, PsStore
from monolith.tables.batch import BatchStamp
from monolith.tables.history import OwnerClock
from monolith.tables.store import Store

ENDS_HANGS_SECONDS = 300.0


class Counter(nn.Module):
    """One worker that counts some ids with each step; its state goes into checkpoints."""

    def __init__(self, ids: Sequence[int], *, worker: int = 0) -> None:
        super().__init__()
        self.ids = torch.tensor(ids)
        self.worker = worker
        self.emb = ml.Embeddings(
            {"id": ml.Slot(1, initializer=ml.initializers.Zeros())}, ml.row_optimizers.Sgd(learning_rate=1.0)
        )
        self.state = TrainState(model=self)

    def step(self, stamp: BatchStamp | None = None) -> None:
        stamp = self.state.next_stamp(worker=self.worker) if stamp is None else stamp
        self.emb({"id": self.ids}, stamp=stamp)["id"].sum().backward()
        self.emb.step()
        self.state.count_step(stamp)

    def counts(self, ids: Sequence[int]) -> list[float]:
        """How often these ids were counted."""
        return [-row for row in self.emb.lookup("id", torch.tensor(ids)).flatten().tolist()]


@contextmanager
def second_worker(like: Store, ids: Sequence[int], *, worker: int = 1) -> Iterator[Counter]:
    """A counter at the same store, with connections of its own."""
    assert isinstance(like, PsStore)
    with PsCluster(like.cluster.addresses) as cluster:
        with use_table_defaults(TableDefaults(store=partial(PsStore, servers=cluster, name=like.name))):
            counter = Counter(ids, worker=worker)
        with closing(counter.emb.store):
            yield counter


class Pusher(threading.Thread):
    """A worker that counts until it is told to stop. A context manager."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(name="second worker")
        self._counter = counter
        self._changed = threading.Condition()
        self._stopped = False
        self.count = 0

    def run(self) -> None:
        """Counts."""
        while not self._stopped:
            self._counter.step()
            with self._changed:
                self.count += 1
                self._changed.notify_all()

    def wait_for_more(self, steps: int = 3) -> None:
        """Returns when it has counted on."""
        with self._changed:
            wanted = self.count + steps
            assert self._changed.wait_for(lambda: self.count >= wanted, ENDS_HANGS_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self.join(ENDS_HANGS_SECONDS)


@contextmanager
def pushing(like: Store, ids: Sequence[int]) -> Iterator[Pusher]:
    """A second worker counts beside what is done inside."""
    with second_worker(like, ids) as counter, Pusher(counter) as pusher:
        yield pusher


def agreed_counts(applied: Sequence[OwnerClock]) -> dict[int, int]:
    """Worker -> how many batches the clocks of all owners say that there were; they must not differ."""
    first, *others = [clock.stamps for clock in applied]
    assert all(other == first for other in others)
    return {worker: stamp.seq + 1 for worker, stamp in first.items()}
