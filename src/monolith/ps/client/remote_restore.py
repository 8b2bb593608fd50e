"""Restores on servers: of all of them at once, or of lost ones."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from monolith.ps._wire_values import stamp_message
from monolith.ps.server.push_gates import rows_owner
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import PreparedRestore
from monolith.tables.local import agreed_stamps
from monolith.tables.snapshot import RestoreReport, report_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.ps.client.store import PsStore
    from monolith.tables import OwnerClock
    from monolith.tables.snapshot import SnapshotManifest, TableMatch


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


class RemoteOwners:
    """`monolith.tables.store.RowOwners` of the rows on servers. Thread-safe.

    A server has state once a chief has marked it as initialized. The mark is lost with the process, as the rows are.
    """

    def __init__(self, store: PsStore) -> None:
        self._store = store
        self._name = rows_owner(store.name)

    @property
    def owned(self) -> tuple[range, ...]:
        """Bucket range of each server."""
        return self._store.owned

    def uninitialized(self) -> list[int]:
        """Returns the servers without state; opens the store, without rows, on restarted servers first."""
        self._store.open_at_new_servers()
        return self._store.cluster.uninitialized(self._name)

    def set_initialized(self) -> None:
        """Marks all servers as initialized: their state was restored, or a run begins with it."""
        self._store.open_at_new_servers()
        lives = {(moment.life.generation, moment.life.life) for moment in self._moments()}
        if len(lives) > 1:  # without a checkpoint a restarted server begins empty
            self._begin_life(generation=0)
        self._store.cluster.set_initialized(self._name)

    def resume(self, lost: Sequence[int], *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Resumes lost servers at the batches of a saved run; the others are unchanged.

        Earlier marks and readers are rejected from now on, because changes of lost servers are unknown. Workers have to
        join again, and resume after the least advanced server.

        Raises:
            FailedPreconditionError: the saved state cannot be divided among the current servers.
        """
        stamps = {index: agreed_stamps(applied, self.owned[index]) for index in lost}
        life = self._begin_life(generation=generation)
        for index, own in stamps.items():
            request = messages.ResumeRequest(
                store=self._store.name, stamps=[stamp_message(stamp) for stamp in own.values()], life=life
            )
            self._store.cluster.ask_one(index, "Resume", request)
        self._store.refresh_newest_time()

    def _moments(self) -> list[messages.MomentResponse]:
        return self._store.cluster.ask("Moment", messages.StoreRequest(store=self._store.name))

    def _begin_life(self, *, generation: int) -> messages.Life:
        """Sets a new common `life` on all servers."""
        highest = max([generation, *(moment.life.generation for moment in self._moments())])
        life = messages.Life(generation=highest + 1, life=secrets.randbits(63))
        self._store.take_life(life)
        return life
