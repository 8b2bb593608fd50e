"""Advisory locks on files and folders of this machine: a lock ends with `release`, or with the process that has it."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from contextlib import suppress
from typing import Self

from monolith.errors import FailedPreconditionError
from monolith.files.local_files import named_errors

_NO_LOCKS = frozenset({errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL})


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Locks an open file without waiting; the lock ends when every copy of the descriptor is closed.

    Returns:
        Whether the lock was free; None: the file system has no locks.

    Raises:
        OSError: the file cannot be locked.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


class FileLock:
    """A lock on a file or folder. A forked child, such as a data loader's worker, does not keep it.

    Args:
        path: What is locked, for messages.
        descriptor: The locked file, which this object closes; -1: the file system has no locks.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        if descriptor >= 0:
            self._finalizer = weakref.finalize(self, _unlock, descriptor, os.getpid())
            _HELD.add(self)

    @classmethod
    def take(cls, path: str, flags: int, *, shared: bool = False) -> FileLock | None:
        """Opens a file or folder with these flags and locks it without waiting.

        Returns:
            The lock; None: another process has it.

        Raises:
            OpError: the file cannot be opened or locked; names it.
        """
        with named_errors(path, "opened"):
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            with named_errors(path, "locked"):
                found = try_lock(descriptor, shared=shared)
        except BaseException:
            os.close(descriptor)
            raise
        if found:
            return cls(path, descriptor)
        os.close(descriptor)
        return cls(path, -1) if found is None else None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock; False after `release` and where the file system has no locks."""
        return self._descriptor >= 0

    def require_held(self) -> Self:
        """Rejects a file system without locks, for uses that nothing else protects from a second process.

        Raises:
            FailedPreconditionError: the file system has no locks.
        """
        if not self.is_held:
            raise FailedPreconditionError(f"'{self.path}': its file system has no locks; use a folder of another one")
        return self

    def write(self, text: bytes) -> None:
        """Replaces the contents of the locked file, such as by the name of its holder; a full disk does not matter."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        if self._descriptor >= 0:
            self._descriptor = -1
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _unlock(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:  # a child has closed its copy already
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a child that was forked just now
            os.close(descriptor)


def _drop_in_child() -> None:
    """Closes the locks in a forked child, which must not keep them when its parent dies."""
    for lock in list(_HELD):
        descriptor, lock._descriptor = lock._descriptor, -1  # noqa: SLF001 - of this module
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


os.register_at_fork(after_in_child=_drop_in_child)
