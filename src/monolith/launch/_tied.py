"""Becomes another program that cannot outlive the process which started it.

    python -I -S _tied.py PARENT COMMAND...

Run as a file, by `process.RoleProcess`: it imports nothing of ours, so that it costs milliseconds. The kernel kills the
program when its parent is gone, however that ended; this survives the exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_GONE = 75
_NOT_FOUND = 127


def main() -> int:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.stderr.write(f"cannot tie a process to its launcher: {os.strerror(ctypes.get_errno())}\n")
        return 1
    if os.getppid() != parent:
        return _GONE  # it died before the call above
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is the caller's, word by word
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return _NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
