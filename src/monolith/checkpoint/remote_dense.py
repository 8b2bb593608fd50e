"""Dense weights that live in other processes, as a checkpoint needs them: frozen in a cut, gathered, restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from monolith.tables import BatchStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseState:
    """Dense weights and their training progress, in the form of one process, whatever the number of their owners."""

    weights: Mapping[str, Tensor]
    """Complete weights, by name."""
    optimizers: Mapping[str, Mapping[str, Any]]
    """By name: ``state``, by name of the weight, and ``groups``, what the rule keeps in each of its groups."""
    clocks: Sequence[Mapping[int, BatchStamp]]
    """Of each owner: worker -> its last batch. They differ only where a worker died between two owners."""
    apart: Sequence[Mapping[str, Any]] = ()
    """Of each owner, only where their clocks differ: the parts of `optimizers` that cannot be put together then."""

    @property
    def applied(self) -> dict[int, BatchStamp]:
        """Worker -> its last batch that every owner has."""
        workers = set.intersection(*(set(clock) for clock in self.clocks)) if self.clocks else set()
        return {
            worker: min((clock[worker] for clock in self.clocks), key=lambda stamp: stamp.seq) for worker in workers
        }

    @property
    def is_level(self) -> bool:
        """Whether all owners have the same batches."""
        return all(clock == self.clocks[0] for clock in self.clocks)


class FrozenDense(Protocol):
    """A consistent copy of the dense weights."""

    def gather(self) -> DenseState:
        """Gathers the weights while training continues; owners release their copies. Any thread may call it once."""
        ...

    def release(self) -> None:
        """Lets the owners release their copies. Idempotent."""
        ...


class RemoteDense(Protocol):
    """The dense weights of a run that owners in other processes keep."""

    @property
    def steps_of_others(self) -> int:
        """Batches of all other workers, as last reported by the first owner; -1: not reported yet."""
        ...

    @property
    def names(self) -> Collection[str]:
        """Names of the weights."""
        ...

    def group_keys(self, optimizer: str) -> Collection[str]:
        """Returns the keys that an optimizer's rule keeps in its groups."""
        ...

    def held(self) -> AbstractContextManager[None]:
        """Holds back all pushes inside the context; all owners have the same batches."""
        ...

    def freeze(self) -> FrozenDense:
        """Makes every owner copy its weights."""
        ...

    def scatter(self, state: DenseState, servers: Sequence[int] | None = None) -> None:
        """Sends every owner, or some of them, its part of a state; workers have to join again."""
        ...

    def uninitialized(self) -> Sequence[int]:
        """Returns the owners without state: `set_initialized` was not called since they started."""
        ...

    def set_initialized(self) -> None:
        """Marks all owners as having state, for as long as they run."""
        ...
