"""A restore on all servers: every server has read and checked its files before any of them changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables.snapshot.restore import RestoreReport, report_of
from monolith.tables.store import PreparedRestore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.ps.client.store import PsStore
    from monolith.tables.snapshot.manifest import SnapshotManifest
    from monolith.tables.snapshot.restore import TableMatch

__all__ = ["RemoteRestore"]


class RemoteRestore(PreparedRestore):
    """`monolith.tables.store.PreparedRestore` of all servers.

    Servers cancel the restore when the connection of this process ends.

    Args:
        store: Store whose rows are replaced.
        numbers: Number of the restore on each server.
        manifest: Manifest of the files.
        match: Mapping of the saved tables to those of the store.
    """

    def __init__(
        self, store: PsStore, numbers: Sequence[int], *, manifest: SnapshotManifest, match: TableMatch
    ) -> None:
        self._store = store
        self._requests = [messages.TicketRequest(store=store.name, number=number) for number in numbers]
        self._manifest = manifest
        self._match = match

    def load(self) -> RestoreReport:
        """Replaces the rows of the servers."""
        answers = self._store.cluster.ask("LoadRestore", self._requests, timeout_seconds=None)
        self._store.refresh_newest_time()
        rows = {name: sum(answer.rows[name] for answer in answers) for name in self._store.native.names}
        return report_of(self._manifest, self._match, rows)

    def __exit__(self, *_: object) -> None:
        self._store.cluster.tell("DropRestore", self._requests)
