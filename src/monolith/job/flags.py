"""Flags by which the processes of a job begin and end together; their state is on the home server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.job.coordinator_connection import JobLine
    from monolith.job.state import JobState

__all__ = ["JobFlags"]


class JobFlags:
    """A flag per worker; a `monolith.hooks.SharedFlags`. Thread-safe.

    The flag of a worker is down while its lease is expired, and up again after it reconnects. Reading makes no call.

    Args:
        line: Connection to the coordinator.
        size: Number of workers.
    """

    def __init__(self, line: JobLine, size: int) -> None:
        self._line = line
        self._size = size

    def __len__(self) -> int:
        return self._size

    def set(self, index: int, value: bool) -> None:
        """Sets one flag; a worker sets only its own."""
        request = messages.ChangeRequest(flag=messages.Flag(index=index, value=value))
        if index > 0 and index == self._line.seat.index:
            self._line.say(request, trains=value)
        else:
            self._line.ask("Change", request)

    def read(self) -> list[bool]:
        """Returns all flags of one consistent state."""
        return self._flags(self._line.state)

    def wait(
        self,
        predicate: Callable[[Sequence[bool]], bool],
        *,
        timeout_seconds: float | None,
        give_up: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until the predicate holds; False: the time is over, or `give_up` was true."""
        return self._line.wait_for(
            lambda state: predicate(self._flags(state)), timeout_seconds=timeout_seconds, give_up=give_up
        )

    def _flags(self, state: JobState) -> list[bool]:
        training = state.training
        return [state.restored, *(index in training for index in range(1, self._size))]
