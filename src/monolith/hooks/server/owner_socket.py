"""A Unix socket in a folder of its own, which only one user of the machine can reach."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from monolith.errors import FailedPreconditionError

__all__ = ["OwnerSocket"]

_MOST_BYTES = 107
"""Maximum length of the path of a Unix socket on Linux; other systems allow a few bytes less, and raise an error."""
_SYSTEM_FOLDER = "/tmp"  # noqa: S108 - mkdtemp makes a folder there that no other user can enter


class OwnerSocket:
    """The path of a socket that is yet to be bound. Its creator removes it. Not thread-safe.

    The folder has mode 0700 from the start, so that other users can never connect. It is in the folder for temporary
    files, or in the system's own folder if that path is too long for a socket.

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
        """Address in the form of gRPC, and of the file in the model directory."""
        return f"unix:{self._path}"

    def narrow(self) -> None:
        """Restricts the bound socket to its owner; some systems do not check the permissions of the folder."""
        self._path.chmod(0o600)

    def remove(self) -> None:
        """Removes the socket and its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
