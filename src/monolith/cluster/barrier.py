"""The barrier at which workers wait while the chief saves, or while an operator has stopped training.

The chief owns slot 0, worker i owns slot i. Slot 0 is set while the barrier is placed, slot i while worker i waits::

    FREE --place--> CLOSING --every worker waits--> CLOSED --remove--> DRAINING --every worker has resumed--> FREE

`BarrierSlots` holds the rules, without a lock or a clock. `BarrierOp` shares one among the threads of a process.
`Barrier` is the interface that hooks and the controller service use; other implementations work across processes.
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

_log = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 60.0


class BarrierAlreadyPlacedError(AlreadyExistsError):
    """The barrier is already placed. The process that placed it removes it."""


class BarrierPhase(enum.Enum):
    """State of a barrier."""

    FREE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()
    DRAINING = enum.auto()


class Barrier(Protocol):
    """A barrier for the workers of a job. Thread-safe."""

    @property
    def capacity(self) -> int:
        """Number of workers, including the chief."""

    def place_barrier(self, action: str = "") -> None:
        """Places the barrier; workers receive `action` as its purpose.

        Raises:
            BarrierAlreadyPlacedError: It is already placed.
        """

    def remove_barrier(self) -> None:
        """Removes the barrier. Does nothing where it is not placed."""

    def is_barrier_placed(self) -> bool:
        """Returns whether the barrier is placed."""

    def run_callbacks(self, action: str) -> None:
        """Runs the callbacks of this process; they may rely on no worker training."""

    def enter(self, index: int) -> str:
        """Records that a worker waits, and returns the action of the barrier."""

    def leave(self, index: int) -> None:
        """Records that a worker resumes."""

    def get_blocked_indices(self) -> list[int]:
        """Returns the workers that wait, and 0 while the barrier is placed."""

    def get_unblocked_indices(self) -> list[int]:
        """Returns the workers that do not wait, and 0 while the barrier is not placed."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Registers `callback`, called from any thread after any process has placed or removed the barrier."""

    def wait_removed(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Blocks until the barrier is removed and returns True; False on timeout or when `give_up` returned True."""

    def wait_blocked(self, timeout_seconds: float) -> list[int]:
        """Blocks until every worker waits or the timeout expires. Returns the workers that do not wait."""


class BarrierSlots:
    """Slots of a barrier and their rules. Not thread-safe.

    Args:
        capacity: Number of workers, including the chief.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"barrier: capacity counts the chief and must be >= 1, got {capacity}")
        self._slots = [False] * capacity
        self.action = ""
        """The action of the last placed barrier."""

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return len(self._slots)

    @property
    def placed(self) -> bool:
        """Whether the barrier is placed."""
        return self._slots[0]

    @property
    def phase(self) -> BarrierPhase:
        """State of the barrier."""
        if self.placed:
            return BarrierPhase.CLOSED if all(self._slots) else BarrierPhase.CLOSING
        return BarrierPhase.DRAINING if any(self._slots) else BarrierPhase.FREE

    def place(self, action: str) -> None:
        """Moves from FREE or DRAINING to CLOSING. A worker that has not resumed yet keeps waiting."""
        if self.placed:
            raise BarrierAlreadyPlacedError(
                f"barrier: placed already (action {self.action!r}); remove it before placing another ({action!r})"
            )
        self._slots[0] = True
        self.action = action

    def remove(self) -> None:
        """Moves to DRAINING or FREE."""
        self._slots[0] = False

    def set_worker(self, index: int, waits: bool) -> None:
        """Records whether a worker waits."""
        if not 1 <= index < self.capacity:
            raise ValueError(f"barrier: index of a worker must be in [1, {self.capacity}), got {index}")
        self._slots[index] = waits

    def indices(self, blocked: bool) -> list[int]:
        """Returns the indices of the slots that are set, or of those that are not."""
        return [index for index, slot in enumerate(self._slots) if slot is blocked]


class BarrierOp:
    """A barrier for threads of this process. Thread-safe; a condition guards the slots.

    Args:
        capacity: Number of workers, including the chief.
        barrier_callbacks: Called with the action: on the chief when it places the barrier, on a worker when it begins
            to wait. They may rely on no worker training.
        clock: Measures how long workers wait.
    """

    def __init__(
        self, capacity: int, barrier_callbacks: Sequence[Callable[[str], None]] = (), *, clock: Clock | None = None
    ) -> None:
        self.capacity = capacity
        """Number of workers, including the chief."""
        self._slots = BarrierSlots(capacity)
        self._callbacks = list(barrier_callbacks)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition(threading.Lock())
        self._change_callbacks: list[Callable[[], None]] = []

    @property
    def phase(self) -> BarrierPhase:
        """State of the barrier."""
        with self._changed:
            return self._slots.phase

    def place_barrier(self, action: str = "") -> None:
        """Places the barrier and runs the callbacks. The barrier stays placed when a callback raises."""
        with self._changed:
            self._slots.place(action)
            self._changed.notify_all()
        self._tell()
        self.run_callbacks(action)

    def remove_barrier(self) -> None:
        """Removes the barrier. Does nothing where it is not placed."""
        with self._changed:
            self._slots.remove()
            self._changed.notify_all()
        self._tell()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Registers `callback`, called after the barrier was placed or removed."""
        self._change_callbacks.append(callback)

    def is_barrier_placed(self) -> bool:
        """Returns whether the barrier is placed."""
        with self._changed:
            return self._slots.placed

    def is_barrier_removed(self) -> bool:
        """Returns whether the barrier is not placed."""
        return not self.is_barrier_placed()

    def is_all_blocked(self) -> bool:
        """Returns whether the barrier is placed and every worker waits."""
        return self.phase is BarrierPhase.CLOSED

    def is_none_blocked(self) -> bool:
        """Returns whether the barrier is not placed and no worker waits."""
        return self.phase is BarrierPhase.FREE

    def get_blocked_indices(self) -> list[int]:
        """Returns the workers that wait, and 0 while the barrier is placed."""
        with self._changed:
            return self._slots.indices(True)

    def get_unblocked_indices(self) -> list[int]:
        """Returns the workers that do not wait, and 0 while the barrier is not placed."""
        with self._changed:
            return self._slots.indices(False)

    def enter(self, index: int) -> str:
        """Records that a worker waits, and returns the action of the barrier."""
        with self._changed:
            self._slots.set_worker(index, True)
            self._changed.notify_all()
            return self._slots.action

    def leave(self, index: int) -> None:
        """Records that a worker resumes."""
        with self._changed:
            self._slots.set_worker(index, False)
            self._changed.notify_all()

    def run_callbacks(self, action: str) -> None:
        """Calls every callback with the action."""
        for callback in self._callbacks:
            callback(action)

    def wait_removed(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Blocks until the barrier is removed and returns True; False on timeout or when `give_up` returned True."""
        return self._wait(lambda: not self._slots.placed, timeout_seconds, give_up)

    def wait_blocked(self, timeout_seconds: float) -> list[int]:
        """Blocks until every worker waits or the timeout expires. Returns the workers that do not wait."""
        self._wait(lambda: not self._slots.indices(False), timeout_seconds)
        return self.get_unblocked_indices()

    def wait_until_barrier_removed(self, index: int) -> None:
        """Blocks worker `index` while the barrier is placed."""
        wait_until_barrier_removed(self, index)

    def _tell(self) -> None:
        for callback in self._change_callbacks:
            callback()

    def _wait(
        self, reached: Callable[[], bool], timeout_seconds: float | None, give_up: Callable[[], bool] | None = None
    ) -> bool:
        return wait_until(
            reached, changed=self._changed, clock=self._clock, timeout_seconds=timeout_seconds, give_up=give_up
        )


def wait_until_barrier_removed(barrier: Barrier, index: int, *, give_up: Callable[[], bool] | None = None) -> None:
    """Blocks a worker while a barrier is placed.

    Args:
        barrier: The barrier.
        index: Index of the worker, from 1 on: the chief does not wait for itself.
        give_up: Called five times a second; True ends the wait.
    """
    action = barrier.enter(index)
    try:
        barrier.run_callbacks(action)
        while not barrier.wait_removed(LOG_EVERY_SECONDS, give_up) and not (give_up is not None and give_up()):
            _log.info("worker %d still waits at the barrier (action %r)", index, action)
    finally:
        barrier.leave(index)
