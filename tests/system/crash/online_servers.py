"""The servers of an online tree: their ports, their export, and their arguments."""

from __future__ import annotations

import random
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.serving import export
from monolith.train import Session
from system.crash.child import Child
from system.crash.stream_task import COLUMNS, StreamCountingTask

if TYPE_CHECKING:
    from pathlib import Path

    from system.crash.child import Tell

__all__ = ["MODEL", "SERVERS", "ServerPorts", "export_untrained", "serve_arguments"]

SERVERS = ("server-0", "server-1")
MODEL = "counts"
_PORTS = range(15_000, 32_000)
"""Below the ephemeral ports: no client connection may occupy the port of a stopped server."""
_TRIES = 1000
_PATIENCE_MS = 60_000
"""Queue timeout: a busy machine must not look like an overload."""


class ServerPorts(NamedTuple):
    """Ports of a server, the same after each restart."""

    http: int
    grpc: int

    @classmethod
    def draw(cls) -> ServerPorts:
        """Draws two free ports."""
        found: set[int] = set()
        draw = random.SystemRandom()
        for _ in range(_TRIES):
            port = draw.choice(_PORTS)
            if _is_free(port):
                found.add(port)
            if len(found) == len(cls._fields):
                return cls(*found)
        raise OSError(f"no free port from {_PORTS.start} to {_PORTS.stop}")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def export_untrained(folder: Path) -> None:
    """Exports the untrained model: all rows of servers come from the log."""
    child = Child(partial(_export, folder))  # the parent starts no threads
    try:
        child.wait()
        child.told()
    finally:
        child.close()


def _export(folder: Path, tell: Tell) -> dict[str, Any]:
    torch.set_num_threads(1)
    with Session(StreamCountingTask(), mode="predict") as session:
        export(session, str(folder), example=dict.fromkeys(COLUMNS, torch.arange(2)))
    return {}


def serve_arguments(export: Path, log: str, ports: ServerPorts) -> list[str]:
    """Returns arguments of ``monolith serve``."""
    places = [f"--follow={log}", f"--port={ports.http}", f"--grpc_port={ports.grpc}"]
    return ["serve", f"{MODEL}={export}", *places, f"--max_wait_ms={_PATIENCE_MS}", "--json"]
