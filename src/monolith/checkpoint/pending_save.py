"""A save that is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.tables.snapshot.save import end_of_save

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
        return end_of_save(self._future, timeout_seconds)
