"""Ownership of a partition: a lock on a file next to its state, which the system releases when a process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from monolith.files import named_errors

__all__ = ["PartitionLock"]


class PartitionLock:
    """The lock of one partition; held from `acquire` to `release`, or to the end of the process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Tries to acquire the lock; returns False if another process has it."""
        with named_errors(self.path, "written"):
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
