"""The barrier of a job of several processes; its state is on the home server."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from monolith.cluster.barrier import BarrierAlreadyPlacedError
from monolith.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.job.coordinator_connection import CoordinatorConnection

__all__ = ["JobBarrier"]


class JobBarrier:
    """A `monolith.cluster.Barrier` for processes. Thread-safe.

    The barrier is removed with the process that placed it. It does not wait for workers that do not train, were lost or
    have ended.

    Args:
        line: Connection to the coordinator.
        index: Index of this worker.
        capacity: Number of workers, including the chief.
    """

    def __init__(self, line: CoordinatorConnection, index: int, capacity: int) -> None:
        self._line = line
        self._index = index
        self._capacity = capacity
        self._callbacks: list[Callable[[str], None]] = []

    @property
    def capacity(self) -> int:
        """Number of workers, including the chief."""
        return self._capacity

    def add_callback(self, callback: Callable[[str], None]) -> None:
        """Adds a callback, called with the action when this process has placed or reached the barrier."""
        self._callbacks.append(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Registers a callback for when any process has placed or removed the barrier."""
        self._line.on_barrier(callback)

    def place_barrier(self, action: str = "") -> None:
        """Places the barrier and runs the callbacks.

        Raises:
            BarrierAlreadyPlacedError: the barrier is placed already.
        """
        try:
            self._line.say(messages.ChangeRequest(place_barrier=action), placed_action=action)
        except AlreadyExistsError as error:
            raise BarrierAlreadyPlacedError(error.message) from error
        except (DeadlineExceededError, UnavailableError):
            with suppress(OpError):  # the barrier may be placed, and a caller that gets an error would not remove it
                self.remove_barrier()
            raise
        self.run_callbacks(action)

    def remove_barrier(self) -> None:
        """Removes the barrier, if it is placed."""
        self._line.say(messages.ChangeRequest(remove_barrier=True), placed_action=None)

    def is_barrier_placed(self) -> bool:
        """Returns whether the barrier is placed, by the last received state; makes no call."""
        return self._line.state.barrier_placed

    def run_callbacks(self, action: str) -> None:
        """Calls every callback with the action."""
        for callback in self._callbacks:
            callback(action)

    def enter(self, index: int) -> str:
        """Marks this worker as waiting, and returns the action of the barrier."""
        self._require_own(index)
        self._line.say(messages.ChangeRequest(waits=True), waits=True)
        return self._line.state.barrier_action

    def leave(self, index: int) -> None:
        """Marks this worker as running; an unreachable home server receives it after it recovers."""
        self._require_own(index)
        with suppress(UnavailableError, DeadlineExceededError):
            self._line.say(messages.ChangeRequest(waits=False), waits=False)

    def get_blocked_indices(self) -> list[int]:
        """Returns the workers that wait; includes 0 while the barrier is placed."""
        state = self._line.state
        return [0] * state.barrier_placed + sorted(state.blocked)

    def get_unblocked_indices(self) -> list[int]:
        """Returns the workers that do not wait; includes 0 while the barrier is not placed."""
        blocked = self.get_blocked_indices()
        return [index for index in range(self._capacity) if index not in blocked]

    def wait_removed(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Waits until the barrier is removed; False: the time is over, or `give_up` was true."""
        return self._line.wait_for(
            lambda state: not state.barrier_placed, timeout_seconds=timeout_seconds, give_up=give_up
        )

    def wait_blocked(self, timeout_seconds: float) -> list[int]:
        """Waits until every training worker waits; returns those that do not after the timeout."""
        self._line.wait_for(lambda state: not state.awaited, timeout_seconds=timeout_seconds)
        return sorted(self._line.state.awaited)

    def _require_own(self, index: int) -> None:
        if index != self._index:
            raise InvalidArgumentError(f"barrier: worker {self._index} speaks for itself, got index {index}")
