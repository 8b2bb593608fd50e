"""What all processes of a job know of it, as it was at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_WORKER", "PS", "WORKER", "JobMember", "JobState", "Place"]

WORKER = "worker"
PS = "ps"
NO_WORKER = -1

Place = tuple[str, int]
"""Role and index of a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMember:
    """One process of a job, or a worker number whose input another one goes on with."""

    role: str
    index: int
    address: str = ""
    incarnation: int = 1
    """Grows with every process that takes this number."""
    progress: int = 0
    """The global step that it has reached, as of its last renewal."""
    alive: bool = True
    """Whether its lease runs."""
    trains: bool = False
    """Whether its session lives: it has said so, and its lease runs."""
    waits: bool = False
    """Whether it waits at the barrier."""
    adopted_by: int = NO_WORKER
    """The worker that trains the rest of this number's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job at one moment. Nothing in it ever changes."""

    incarnation: int = 0
    """Drawn by the process of the home server when it began: another one after it came back; 0 before it was heard."""
    version: int = 0
    """Grows with every change within an incarnation."""
    num_workers: int = 0
    num_shares: int = 0
    """Shares that the input has: workers that the run began with, which may have been others than now."""
    members: tuple[JobMember, ...] = ()
    """By role and index; those that were lost among them, those that left not."""
    restored: bool = False
    """Whether the model is there, so that workers may train."""
    finished: frozenset[int] = frozenset()
    """Workers whose input has ended, and all of it is applied."""
    step_offset: int = 0
    steps: int = 0
    """Batches of all workers that the home server has applied."""
    barrier_placed: bool = False
    barrier_action: str = ""
    lost_updates: Mapping[tuple[int, int], int] = field(default_factory=lambda: MappingProxyType({}))
    """Worker and server -> updates that this server lost for good."""
    stop_requested: bool = False
    lost: frozenset[int] = frozenset()
    """Workers with an input of their own (files of the shared queue, or a share that no worker has the number of) that
    are not finished, and whose process is gone."""
    adoptable: frozenset[int] = frozenset()
    """Those of them that another worker may go on for now."""
    generation: int = 0
    """Another number whenever all servers are put back to one moment, which undoes what came after; 0 before that."""
    ended: bool = False
    """Whether the chief has saved for the last time: nothing is trained again, and members end."""
    left: frozenset[int] = frozenset()
    """Workers that ended before their input did, and push nothing any more."""

    @property
    def global_step(self) -> int:
        """Of the whole job."""
        return self.step_offset + self.steps

    @property
    def blocked(self) -> frozenset[int]:
        """Workers that wait at the barrier."""
        return frozenset(each.index for each in self.members if each.role == WORKER and each.waits)

    @property
    def training(self) -> frozenset[int]:
        """Workers whose sessions live."""
        return frozenset(each.index for each in self.members if each.role == WORKER and each.trains)

    @property
    def awaited(self) -> frozenset[int]:
        """Workers that a barrier which stands is still to hear of; the chief is none of them."""
        done = self.blocked | self.finished | self.left | {0}
        return self.training - done if self.restored else frozenset()

    def member(self, role: str, index: int) -> JobMember | None:
        """The one of this place, if there is or was one that did not leave."""
        return next((each for each in self.members if (each.role, each.index) == (role, index)), None)
