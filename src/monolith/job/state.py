"""The state of a job at one point in time, as all of its processes see it, and the count of its lost batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORKER = "worker"
PS = "ps"
NO_WORKER = -1

Place = tuple[str, int]
"""Role and index of a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMember:
    """A process of a job, or the number of a lost worker whose input another worker has adopted."""

    role: str
    index: int
    address: str = ""
    incarnation: int = 1
    """Grows with every process that takes this number."""
    progress: int = 0
    """Global step reached, as of the last renewal."""
    alive: bool = True
    """Whether its lease is valid."""
    trains: bool = False
    """Whether its session is live: the worker has reported so, and its lease is valid."""
    waits: bool = False
    """Whether it waits at the barrier."""
    adopted_by: int = NO_WORKER
    """The worker that trains the rest of this number's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """State of a job at one point in time. Immutable."""

    incarnation: int = 0
    """Drawn by each process of the home server at its start; 0 before the first state was received."""
    version: int = 0
    """Grows with every change within an incarnation."""
    num_workers: int = 0
    num_shares: int = 0
    """Number of input shares: the workers that the run began with, which may differ from `num_workers`."""
    members: tuple[JobMember, ...] = ()
    """By role and index; includes lost members, not those that left."""
    restored: bool = False
    """Whether the model is restored, so that workers may train."""
    finished: frozenset[int] = frozenset()
    """Workers whose input has ended and is fully applied."""
    step_offset: int = 0
    steps: int = 0
    """Batches of all workers that the home server has applied."""
    barrier_placed: bool = False
    barrier_action: str = ""
    lost_updates: Mapping[tuple[int, int], int] = field(default_factory=lambda: MappingProxyType({}))
    """Worker and server -> number of updates that this server lost permanently."""
    stop_requested: bool = False
    lost: frozenset[int] = frozenset()
    """Unfinished workers that own input and have no live process. They own files of the shared queue, or a share that
    no worker has the number of.
    """
    adoptable: frozenset[int] = frozenset()
    """Lost workers that another worker may adopt now."""
    generation: int = 0
    """Changes whenever all servers are restored to one state, which undoes later updates; 0 before the first restore.
    """
    ended: bool = False
    """Whether the chief has written the last checkpoint: training is over, and members exit."""
    left: frozenset[int] = frozenset()
    """Workers that stopped before the end of their input and push nothing any more."""

    @property
    def global_step(self) -> int:
        """Global step of the job."""
        return self.step_offset + self.steps

    @property
    def blocked(self) -> frozenset[int]:
        """Workers that wait at the barrier."""
        return frozenset(member.index for member in self.members if member.role == WORKER and member.waits)

    @property
    def training(self) -> frozenset[int]:
        """Workers whose sessions are live."""
        return frozenset(member.index for member in self.members if member.role == WORKER and member.trains)

    @property
    def awaited(self) -> frozenset[int]:
        """Workers that a placed barrier still waits for; never the chief."""
        done = self.blocked | self.finished | self.left | {0}
        return self.training - done if self.restored else frozenset()

    def member(self, role: str, index: int) -> JobMember | None:
        """Returns the member of this place, alive or lost; None where it left or never joined."""
        return next((member for member in self.members if (member.role, member.index) == (role, index)), None)


_Who = TypeVar("_Who")


class LostUpdates(Generic[_Who]):
    """Counts every batch once per key (such as a worker and a server), however often it is reported.

    >>> lost = LostUpdates[str]()
    >>> lost.add("rows of server 1", range(130, 142))
    12
    >>> lost.add("rows of server 1", range(130, 154))  # restored to the same state as the first time
    12
    >>> lost.counts()
    {'rows of server 1': 24}
    """

    def __init__(self) -> None:
        self._ranges: dict[_Who, list[range]] = defaultdict(list)

    def add(self, whose: _Who, batches: range) -> int:
        """Adds batches to a key and returns how many of them are new."""
        before = _count(self._ranges[whose])
        self._ranges[whose] = _merged([*self._ranges[whose], batches])
        return _count(self._ranges[whose]) - before

    def counts(self) -> dict[_Who, int]:
        """Returns the number of lost batches by key."""
        return {whose: _count(ranges) for whose, ranges in self._ranges.items() if ranges}

    def ranges(self) -> list[tuple[_Who, range]]:
        """Returns all added batches, as disjoint ranges."""
        return [(whose, batches) for whose, ranges in self._ranges.items() for batches in ranges]

    def clear(self) -> None:
        """Discards all counts, after all servers were restored to one state."""
        self._ranges.clear()


def _count(ranges: Iterable[range]) -> int:
    return sum(len(batches) for batches in ranges)


def _merged(ranges: Iterable[range]) -> list[range]:
    """Returns the same numbers in as few ranges as possible."""
    merged: list[range] = []
    for batches in sorted((batches for batches in ranges if batches), key=lambda batches: batches.start):
        if merged and batches.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, batches.stop))
        else:
            merged.append(batches)
    return merged
