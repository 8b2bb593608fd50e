"""Replaces itself by another program that cannot outlive the process that started it.

    python -I -S _tied.py PARENT COMMAND...

Run as a file, by `process.RoleProcess`: it imports nothing of ours, so that it costs milliseconds. The kernel kills the
program when its parent ends, for whatever reason; this setting survives the exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

GONE = 75
"""Exit code of a process whose parent died before it was tied to it."""
_PR_SET_PDEATHSIG = 1
_NOT_FOUND = 127


def tie_to(parent: int) -> bool:
    """Makes this process die with its parent; returns whether the parent was still alive.

    Raises:
        OSError: The kernel refuses it.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"cannot tie a process to its launcher: {os.strerror(ctypes.get_errno())}")
    return os.getppid() == parent


def main() -> int:
    """Ties this process to its parent, then executes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    try:
        if not tie_to(parent):
            return GONE
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606 - the caller's command, unchanged
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return _NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
