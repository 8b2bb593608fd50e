"""Opens files of this machine that others make: they may not be there yet, or be no files."""

from __future__ import annotations

import errno
import os
import stat

from monolith.errors import DataLossError, InvalidArgumentError
from monolith.files.named_errors import named_errors

__all__ = ["open_if_there", "read_regular_file"]

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_if_there(path: str) -> int | None:
    """A descriptor to read a file by, which the caller closes; None: there is no such file yet.

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
    """A small file in full. A pipe without a writer, a device or a socket is not waited for.

    Raises:
        FileNotFoundError: it is not there.
        InvalidArgumentError: it is no file.
        DataLossError: it has more bytes than it may have; they are not read.
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
