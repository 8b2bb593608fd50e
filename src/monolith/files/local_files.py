"""Files of this machine: errors that name the file, files that other processes make, and advisory locks.

A lock ends with `release`, or with the process that has it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    FileUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    StorageFullError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR})
"""Errors of the name itself, which no retry and no other disk fixes."""


@contextmanager
def named_errors(place: str, doing: str) -> Iterator[None]:
    """Turns an error of the file system into an `OpError` that names the file."""
    try:
        yield
    except OSError as error:
        raise _named(error, f"'{place}': cannot be {doing}: {error.strerror or error}") from error


def _named(error: OSError, text: str) -> OpError:
    if error.errno in _NO_SPACE:
        return StorageFullError(f"{text}; make room and save again")
    if error.errno in _NOT_ALLOWED:
        return PermissionDeniedError(text)
    if error.errno in _NO_NAMES:
        return InvalidArgumentError(text)
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFoundError(text)
    return FileUnavailableError(text)


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_if_there(path: str) -> int | None:
    """Opens a file and returns a descriptor to read, which the caller closes; None: there is no such file yet.

    Raises:
        InvalidArgumentError: it is a device, a pipe or a socket.
        OpError: it cannot be read.
    """
    with named_errors(path, "read"):
        try:
            descriptor = os.open(path, _READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket
                raise _special(path) from error
            raise
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            os.close(descriptor)
            raise _special(path)
        return descriptor


def read_regular_file(path: str, *, most_bytes: int) -> bytes:
    """Reads a small file in full. Does not wait for a pipe without a writer, a device or a socket.

    Raises:
        FileNotFoundError: the file is missing.
        InvalidArgumentError: it is no regular file.
        DataLossError: it is larger than `most_bytes`; nothing is read.
        OpError: it cannot be read.
    """
    descriptor = open_if_there(path)
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    with named_errors(path, "read"), os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > most_bytes:
            raise DataLossError(f"file '{path}': {size} bytes, expected at most {most_bytes}")
        return file.read(size)


def _special(path: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"file '{path}': it is a device, a pipe or a socket; give another name")


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
