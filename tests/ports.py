"""Ports for servers that tests start: ones that the system gives to nobody else."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def free_port() -> int:
    """A port of this machine on which nobody listens.

    It is below those that connections are given as their own ends, so that it stays free until somebody listens on it.
    """
    first_given = int(_RANGE.read_text(encoding="ascii").split()[0])
    while True:
        port = random.SystemRandom().randrange(_LOWEST, first_given)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
