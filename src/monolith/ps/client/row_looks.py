"""Reads a single row of the servers, for debugging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from monolith.ps.client.cluster import PsCluster

__all__ = ["FoundRow", "find_row"]


@dataclass(frozen=True, slots=True)
class FoundRow:
    """One row."""

    server: int
    """Index of the server that has it."""
    weights: tuple[float, ...]


def find_row(cluster: PsCluster, store: str, table: str, key: int, bucket: int) -> FoundRow | None:
    """Returns the row of a key, from the server that has it; None: there is none.

    Raises:
        NotFoundError: no such store or table.
    """
    request = messages.LookRowRequest(store=store, table=table, key=key, bucket=bucket)
    for server, answer in enumerate(cluster.ask("LookRow", request)):
        if answer.found:
            return FoundRow(server, tuple(answer.weights))
    return None
