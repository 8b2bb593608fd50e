"""A port that shows that a process is alive: it accepts each connection and closes it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from monolith.cluster.addresses import EVERY_INTERFACE, concat_ip_and_port, get_local_ip, split_address
from monolith.cluster.held_port import bound_socket

__all__ = ["LivenessPort"]


class LivenessPort:
    """A listening port for `NodeAliveChecker`. A context manager.

    Args:
        address: ``host:port`` to listen on; port 0 picks a free one.

    Raises:
        UnavailableError: the port is in use, or the host is not an address of this machine.
    """

    def __init__(self, address: str) -> None:
        host, _ = split_address(address)
        self._listening = bound_socket(address, subject="worker", listens=True)
        reached = get_local_ip() if host in EVERY_INTERFACE else host
        self.address = concat_ip_and_port(reached, self._listening.getsockname()[1])
        """Address at which other processes reach the port."""
        threading.Thread(target=self._serve, name="presence", daemon=True).start()

    def close(self) -> None:
        """Closes the port. Idempotent."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread, which close alone does not
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._listening.accept()
            except OSError:
                return
            visitor.close()
