"""The barrier at which workers wait while the chief saves, or while an operator has stopped training.

The chief owns slot 0, worker i owns slot i. Slot 0 says that the barrier stands, another that its worker waits::

    FREE --place--> CLOSING --every worker has come--> CLOSED --remove--> DRAINING --every worker has gone--> FREE

`BarrierSlots` decides, without a lock or a clock. `BarrierOp` shares one among the threads of a process. `Barrier` is
what hooks and the controller service need of it, so that another may live in another process.
"""

from __future__ import annotations

import enum
import logging
import threading
from typing import TYPE_CHECKING, Protocol

from monolith.clock import SystemClock, wait_until
from monolith.errors import AlreadyExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.clock import Clock

__all__ = [
    "Barrier",
    "BarrierAlreadyPlacedError",
    "BarrierOp",
    "BarrierPhase",
    "BarrierSlots",
    "wait_until_barrier_removed",
]

_log = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 60.0


class BarrierAlreadyPlacedError(AlreadyExistsError):
    """The barrier stands already; whoever placed it removes it."""


class BarrierPhase(enum.Enum):
    """How far a barrier is."""

    FREE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()
    DRAINING = enum.auto()


class Barrier(Protocol):
    """A barrier for the workers of a job; every method may be called from any thread."""

    @property
    def capacity(self) -> int:
        """Number of workers, the chief among them."""
        ...

    def place_barrier(self, action: str = "") -> None:
        """Places it; `action` tells the workers what it is for.

        Raises:
            BarrierAlreadyPlacedError: It stands.
        """
        ...

    def remove_barrier(self) -> None:
        """Removes it, whether it stands or not."""
        ...

    def is_barrier_placed(self) -> bool:
        """Whether it stands."""
        ...

    def run_callbacks(self, action: str) -> None:
        """Does, in this process, what belongs to a moment at which nobody trains."""
        ...

    def enter(self, index: int) -> str:
        """Notes that a worker waits, and returns what the barrier is for."""
        ...

    def leave(self, index: int) -> None:
        """Notes that a worker goes on."""
        ...

    def get_blocked_indices(self) -> list[int]:
        """Workers that wait; 0 while the barrier stands."""
        ...

    def get_unblocked_indices(self) -> list[int]:
        """Workers that do not wait; 0 while the barrier does not stand."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Has `callback` called, from any thread, when it was placed or removed, whoever did it."""
        ...

    def wait_removed(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Waits until it does not stand, and wakes at once; False: the time is over, or it was given up."""
        ...

    def wait_blocked(self, timeout_seconds: float) -> list[int]:
        """Waits until every worker has come; those that had not when the time was over."""
        ...


class BarrierSlots:
    """The slots and the rules. Used by one thread at a time.

    Args:
        capacity: Number of workers, the chief among them.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"barrier: capacity counts the chief and must be >= 1, got {capacity}")
        self._slots = [False] * capacity
        self._action = ""

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return len(self._slots)

    @property
    def action(self) -> str:
        """What the barrier was placed for last."""
        return self._action

    @property
    def placed(self) -> bool:
        """Whether the barrier stands."""
        return self._slots[0]

    @property
    def phase(self) -> BarrierPhase:
        """How far it is."""
        if self.placed:
            return BarrierPhase.CLOSED if all(self._slots) else BarrierPhase.CLOSING
        return BarrierPhase.DRAINING if any(self._slots) else BarrierPhase.FREE

    def place(self, action: str) -> None:
        """FREE or DRAINING to CLOSING: a worker that has not gone on yet stays for the new one."""
        if self.placed:
            raise BarrierAlreadyPlacedError(
                f"barrier: placed already (action {self._action!r}); remove it before placing another ({action!r})"
            )
        self._slots[0] = True
        self._action = action

    def remove(self) -> None:
        """To DRAINING or FREE."""
        self._slots[0] = False

    def set_worker(self, index: int, waits: bool) -> None:
        """Notes whether a worker waits."""
        if not 1 <= index < self.capacity:
            raise ValueError(f"barrier: index of a worker must be in [1, {self.capacity}), got {index}")
        self._slots[index] = waits

    def indices(self, blocked: bool) -> list[int]:
        """The slots that are set, or those that are not."""
        return [index for index, slot in enumerate(self._slots) if slot is blocked]


class BarrierOp:
    """A barrier for threads of this process. Any thread may call any method; a condition guards the slots.

    Args:
        capacity: Number of workers, the chief among them.
        barrier_callbacks: Called with the action: on the chief when it places the barrier, on a worker when it has
            come to it; for what belongs to a moment at which nobody trains.
        clock: Measures how long workers wait.
    """

    def __init__(
        self,
        capacity: int,
        barrier_callbacks: Sequence[Callable[[str], None]] = (),
        *,
        clock: Clock | None = None,
    ) -> None:
        self._slots = BarrierSlots(capacity)
        self._callbacks = list(barrier_callbacks)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition(threading.Lock())
        self._told: list[Callable[[], None]] = []

    @property
    def capacity(self) -> int:
        """Number of workers, the chief among them."""
        return self._slots.capacity

    @property
    def phase(self) -> BarrierPhase:
        """How far it is."""
        with self._changed:
            return self._slots.phase

    def place_barrier(self, action: str = "") -> None:
        """Places it and runs the callbacks; it stands although a callback raises."""
        with self._changed:
            self._slots.place(action)
            self._changed.notify_all()
        self._tell()
        self.run_callbacks(action)

    def remove_barrier(self) -> None:
        """Removes it, whether it stands or not."""
        with self._changed:
            self._slots.remove()
            self._changed.notify_all()
        self._tell()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Has `callback` called when it was placed or removed."""
        self._told.append(callback)

    def is_barrier_placed(self) -> bool:
        """Whether it stands."""
        with self._changed:
            return self._slots.placed

    def is_barrier_removed(self) -> bool:
        """Whether it does not stand."""
        return not self.is_barrier_placed()

    def is_all_blocked(self) -> bool:
        """Whether it stands and every worker waits."""
        return self.phase is BarrierPhase.CLOSED

    def is_none_blocked(self) -> bool:
        """Whether it does not stand and no worker waits."""
        return self.phase is BarrierPhase.FREE

    def get_blocked_indices(self) -> list[int]:
        """Workers that wait; 0 while the barrier stands."""
        with self._changed:
            return self._slots.indices(True)

    def get_unblocked_indices(self) -> list[int]:
        """Workers that do not wait; 0 while the barrier does not stand."""
        with self._changed:
            return self._slots.indices(False)

    def enter(self, index: int) -> str:
        """Notes that a worker waits, and returns what the barrier is for."""
        with self._changed:
            self._slots.set_worker(index, True)
            self._changed.notify_all()
            return self._slots.action

    def leave(self, index: int) -> None:
        """Notes that a worker goes on."""
        with self._changed:
            self._slots.set_worker(index, False)
            self._changed.notify_all()

    def run_callbacks(self, action: str) -> None:
        """Calls every callback with the action."""
        for callback in self._callbacks:
            callback(action)

    def wait_removed(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Waits until it does not stand; False: the time is over, or it was given up."""
        return self._wait(lambda: not self._slots.placed, timeout_seconds, give_up)

    def wait_blocked(self, timeout_seconds: float) -> list[int]:
        """Waits until every worker has come; those that had not when the time was over."""
        self._wait(lambda: not self._slots.indices(False), timeout_seconds)
        return self.get_unblocked_indices()

    def wait_until_barrier_removed(self, index: int) -> None:
        """Waits as worker `index` while the barrier stands."""
        wait_until_barrier_removed(self, index)

    def _tell(self) -> None:
        for callback in self._told:
            callback()

    def _wait(
        self, reached: Callable[[], bool], timeout_seconds: float | None, give_up: Callable[[], bool] | None = None
    ) -> bool:
        return wait_until(
            reached, changed=self._changed, clock=self._clock, timeout_seconds=timeout_seconds, give_up=give_up
        )


def wait_until_barrier_removed(barrier: Barrier, index: int, *, give_up: Callable[[], bool] | None = None) -> None:
    """Waits as a worker while a barrier stands.

    Args:
        barrier: Where to wait.
        index: Which worker, from 1 on: the chief does not wait for itself.
        give_up: Asked five times a second; True ends the wait.
    """
    action = barrier.enter(index)
    try:
        barrier.run_callbacks(action)
        while not barrier.wait_removed(LOG_EVERY_SECONDS, give_up) and not (give_up is not None and give_up()):
            _log.info("worker %d still waits at the barrier (action %r)", index, action)
    finally:
        barrier.leave(index)
