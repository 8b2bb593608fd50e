"""A save that is under way."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

from monolith.errors import DeadlineExceededError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from monolith.checkpoint.catalog import SavedCheckpoint

__all__ = ["PendingSave"]


class PendingSave:
    """A save that goes on in a thread named ``monolith-checkpoint``. Any thread may call it."""

    def __init__(self, future: Future[SavedCheckpoint]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.is_written

    @property
    def is_written(self) -> bool:
        """Whether this process has nothing more to do for it."""
        return self._future.done()

    def wait(self, timeout_seconds: float | None = None) -> SavedCheckpoint:
        """Waits for the commit.

        Raises:
            DeadlineExceededError: it goes on; ask again.
            OpError: what went wrong; see `Saver.save`.
        """
        try:
            return self._future.result(timeout_seconds)
        except FutureTimeoutError as error:
            if self._future.done():
                raise
            raise DeadlineExceededError(f"save: not done within {timeout_seconds} s; it goes on") from error
