"""A place to listen that only one user of the machine can reach: a Unix socket in a folder of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from monolith.errors import FailedPreconditionError

__all__ = ["OwnerSocket"]

_MOST_BYTES = 107
"""Of the path of a Unix socket on Linux; other systems take a few less, and then say so themselves."""
_SYSTEM_FOLDER = "/tmp"  # noqa: S108 - mkdtemp makes a folder there that nobody else can enter


class OwnerSocket:
    """The path of a socket that is still to be bound. Whoever made it removes it; one thread.

    The folder has mode 0700 from the start, so that there is no moment at which others could connect. It is in the
    folder for temporary files, or where that has too long a name for a socket, in the system's own.

    Raises:
        FailedPreconditionError: the path would be too long for a socket in both.
    """

    def __init__(self) -> None:
        for parent in (None, _SYSTEM_FOLDER):
            self._folder = Path(tempfile.mkdtemp(prefix="monolith-control-", dir=parent))
            self._path = self._folder / "socket"
            if len(os.fsencode(self._path)) <= _MOST_BYTES:
                return
            self.remove()
        raise FailedPreconditionError(
            f"controller: a socket's path may have {_MOST_BYTES} bytes, got {self._path}; set TMPDIR to a shorter"
            " folder, or give the controller a host"
        )

    @property
    def address(self) -> str:
        """As gRPC, and the file in the model directory, have it."""
        return f"unix:{self._path}"

    def narrow(self) -> None:
        """Takes the bound socket from everybody else, too; not all systems look at its folder only."""
        self._path.chmod(0o600)

    def remove(self) -> None:
        """Removes the socket and its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
