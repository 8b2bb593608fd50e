"""How far a forked worker may go, said by its parent while it runs."""

from __future__ import annotations

import mmap
import time

_POLL_SECONDS = 0.001
_BYTES = 8


class BatchLimit:
    """A number in memory that a process shares with those it forks. One process sets it, others wait at it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BYTES)

    def set(self, limit: int) -> None:
        """Batches below this number may be made."""
        self._memory[:] = limit.to_bytes(_BYTES, "little")

    def wait_below(self, batch: int) -> None:
        """Returns when this batch may be made."""
        while int.from_bytes(self._memory[:], "little") <= batch:
            time.sleep(_POLL_SECONDS)
