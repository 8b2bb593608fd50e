"""A command for a shell, which is a fork that tests start: `programs.Programs.shell_commands`.

It hands over its arguments and descriptors, passes on signals, and ends as the fork does; ``python -I -S`` runs it in
milliseconds.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    """Waits for the fork."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    order = {"arguments": sys.argv[2:], "folder": str(Path.cwd()), "variables": dict(os.environ)}  # noqa: TID251
    socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], [0, 1, 2])
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    status = int(connection.recv(16))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
