"""Files of this machine: errors of monolith for those of the file system, and files that other processes make."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.errors import (
    DataLossError,
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
