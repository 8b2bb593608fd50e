"""The barrier of a job whose workers are processes: it stands on the home server."""

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
from monolith.ps.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.ps._job_line import JobLine

__all__ = ["JobBarrier"]


class JobBarrier:
    """A `monolith.cluster.Barrier` for processes. Any thread may call it.

    It falls with the process that placed it. A worker that does not train, was lost or has ended is not waited for.

    Args:
        line: To the coordinator.
        index: Which worker this process is.
        capacity: Number of workers, the chief among them.
    """

    def __init__(self, line: JobLine, index: int, capacity: int) -> None:
        self._line = line
        self._index = index
        self._capacity = capacity
        self._callbacks: list[Callable[[str], None]] = []

    @property
    def capacity(self) -> int:
        """Number of workers, the chief among them."""
        return self._capacity

    def add_callback(self, callback: Callable[[str], None]) -> None:
        """Called with the action when this process has placed the barrier, or has come to it."""
        self._callbacks.append(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Has `callback` called when it was heard that the barrier was placed or removed, whoever did it."""
        self._line.on_barrier(callback)

    def place_barrier(self, action: str = "") -> None:
        """Places it and runs the callbacks.

        Raises:
            BarrierAlreadyPlacedError: It stands.
        """
        try:
            self._line.say(messages.ChangeRequest(place_barrier=action), placed_action=action)
        except AlreadyExistsError as error:
            raise BarrierAlreadyPlacedError(error.message) from error
        except (DeadlineExceededError, UnavailableError):
            with suppress(OpError):  # it may stand, and a caller that got an error would not remove it
                self.remove_barrier()
            raise
        self.run_callbacks(action)

    def remove_barrier(self) -> None:
        """Removes it, whether it stands or not."""
        self._line.say(messages.ChangeRequest(remove_barrier=True), placed_action=None)

    def is_barrier_placed(self) -> bool:
        """Whether it stands, as far as was heard; costs no call."""
        return self._line.state.barrier_placed

    def run_callbacks(self, action: str) -> None:
        """Calls every callback with the action."""
        for callback in self._callbacks:
            callback(action)

    def enter(self, index: int) -> str:
        """Notes that this worker waits, and returns what the barrier is for."""
        self._require_own(index)
        self._line.say(messages.ChangeRequest(waits=True), waits=True)
        return self._line.state.barrier_action

    def leave(self, index: int) -> None:
        """Notes that this worker goes on; a home server that is away hears it when it is back."""
        self._require_own(index)
        with suppress(UnavailableError, DeadlineExceededError):
            self._line.say(messages.ChangeRequest(waits=False), waits=False)

    def get_blocked_indices(self) -> list[int]:
        """Workers that wait; 0 while the barrier stands."""
        state = self._line.state
        return [0] * state.barrier_placed + sorted(state.blocked)

    def get_unblocked_indices(self) -> list[int]:
        """Workers that do not wait; 0 while the barrier does not stand."""
        blocked = self.get_blocked_indices()
        return [index for index in range(self._capacity) if index not in blocked]

    def wait_removed(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Waits until it does not stand; False: the time is over, or it was given up."""
        return self._line.wait_for(
            lambda state: not state.barrier_placed, timeout_seconds=timeout_seconds, give_up=give_up
        )

    def wait_blocked(self, timeout_seconds: float) -> list[int]:
        """Waits until every worker that trains has come; those that had not when the time was over."""
        self._line.wait_for(lambda state: not state.awaited, timeout_seconds=timeout_seconds)
        return sorted(self._line.state.awaited)

    def _require_own(self, index: int) -> None:
        if index != self._index:
            raise InvalidArgumentError(f"barrier: worker {self._index} speaks for itself, got index {index}")
