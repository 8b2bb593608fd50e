"""A save in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.snapshot.save import end_of_save

if TYPE_CHECKING:
    from concurrent.futures import Future

    from monolith.checkpoint.catalog import SavedCheckpoint

__all__ = ["PendingSave"]


class PendingSave:
    """A save that runs in a thread named ``monolith-checkpoint``. Thread-safe."""

    def __init__(self, future: Future[SavedCheckpoint]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the save has completed or failed."""
        return self.is_written

    @property
    def is_written(self) -> bool:
        """Whether this process has written everything."""
        return self._future.done()

    def wait(self, timeout_seconds: float | None = None) -> SavedCheckpoint:
        """Waits for the commit.

        Raises:
            DeadlineExceededError: the save is still running; wait again.
            OpError: the save failed; see `Saver.save`.
        """
        return end_of_save(self._future, timeout_seconds)
