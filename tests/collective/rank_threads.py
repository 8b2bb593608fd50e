"""Ranks that are threads of one process: for programs drawn at random, and for faults that are put in by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from monolith.collective import SerialExecutor
from monolith.collective.wire import exchanging

T = TypeVar("T")
LIMIT_SECONDS = 60
"""Ends hangs; nothing waits that long."""


class ThreadHub:
    """Where the wires of all ranks meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots: list[object] = [None] * size

    def share(self, rank: int, mine: T) -> list[T]:
        """What all ranks have brought; each must copy it before it comes again."""
        try:
            self.barrier.wait(LIMIT_SECONDS)
            self.slots[rank] = mine
            self.barrier.wait(LIMIT_SECONDS)
        except threading.BrokenBarrierError:
            raise RuntimeError("connection closed by peer") from None
        return list(self.slots)  # type: ignore[arg-type] # all bring the same kind


class ThreadWire:
    """`monolith.collective.wire.Wire` between threads."""

    def __init__(self, hub: ThreadHub, rank: int) -> None:
        self._hub = hub
        self.rank, self.size = rank, hub.size
        self.num_calls = 0
        self.fault: Callable[[int], None] | None = None
        """Called with the number of each exchange before it is made."""

    def exchange(
        self, received: torch.Tensor, sent: torch.Tensor, received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        begin = 0
        assert sum(sent_sizes) == len(sent)
        assert sum(received_sizes) == len(received)
        for rank, (theirs, sizes) in enumerate(self._share((sent.clone(), list(sent_sizes)))):
            first = sum(sizes[: self.rank])
            part = theirs[first : first + sizes[self.rank]]
            assert len(part) == received_sizes[rank], "sizes that differ crash a library"
            received[begin : begin + len(part)] = part
            begin += len(part)

    def exchange_evenly(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        for rank, theirs in enumerate(self._share(sent.clone())):
            received[rank] = theirs[self.rank]

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._share(tensor.clone())

    def broadcast(self, tensor: torch.Tensor, root_rank: int) -> None:
        if tensor.numel():
            tensor.copy_(self._share(tensor.clone())[root_rank])

    def add(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(self._share(tensor.clone())).sum(0))

    def close(self) -> None:
        self._hub.barrier.abort()

    @exchanging
    def _share(self, mine: T) -> list[T]:
        self.num_calls += 1
        if self.fault is not None:
            self.fault(self.num_calls)
        return self._hub.share(self.rank, mine)


class ThreadRank:
    """One of them, and its two lines."""

    def __init__(self, training: ThreadHub, saving: ThreadHub, rank: int) -> None:
        self.rank, self.size = rank, training.size
        self.wire = ThreadWire(training, rank)
        self.training = SerialExecutor("training", self.wire)
        self.saving = SerialExecutor("saving", ThreadWire(saving, rank))

    def close(self) -> None:
        for line in (self.training, self.saving):
            line.close()


def run_ranks(size: int, program: Callable[[ThreadRank], T]) -> list[T]:
    """What the program returns on each rank."""
    hubs = ThreadHub(size), ThreadHub(size)
    ranks = [ThreadRank(*hubs, rank) for rank in range(size)]

    def run(rank: ThreadRank) -> T:
        try:
            return program(rank)
        except BaseException:
            for hub in hubs:
                hub.barrier.abort()  # the others wait for it in vain
            raise

    with ThreadPoolExecutor(size) as pool:
        found = [pool.submit(run, rank) for rank in ranks]
        errors = [each.exception() for each in found]
    for rank in ranks:
        rank.close()
    real = [error for error in errors if error is not None and "closed by peer" not in str(error)]
    for error in [*real, *errors]:
        if error is not None:
            raise error
    return [each.result() for each in found]
