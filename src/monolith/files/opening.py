"""Opens files of this machine that somebody else may not have made yet."""

from __future__ import annotations

import os

from monolith.files.named_errors import named_errors
from monolith.files.paths import refuse_special_file

__all__ = ["open_if_there"]


def open_if_there(path: str) -> int | None:
    """A descriptor to read a file by, which the caller closes; None: there is no such file yet.

    Raises:
        InvalidArgumentError: it is a device, a pipe or a socket.
        OpError: it cannot be read.
    """
    refuse_special_file(path)
    with named_errors(path, "read"):
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
