"""A limit on the batches of a forked worker, which its parent raises while it runs."""

from __future__ import annotations

import mmap
import time

_POLL_SECONDS = 0.001
_BYTES = 8


class BatchLimit:
    """A number in memory that a process shares with its forks. One process sets it, others wait for it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BYTES)

    def set(self, limit: int) -> None:
        """Allows batches below this number."""
        self._memory[:] = limit.to_bytes(_BYTES, "little")

    def wait_below(self, batch: int) -> None:
        """Returns when this batch is allowed."""
        while int.from_bytes(self._memory[:], "little") <= batch:
            time.sleep(_POLL_SECONDS)
