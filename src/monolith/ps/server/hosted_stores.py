"""The stores of one server by name, and which of its owners have state."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

from monolith.deltalog.publish import LogPosition
from monolith.errors import NotFoundError
from monolith.ps.agreement import require_agreement
from monolith.ps.recovery.recording import NoRecording
from monolith.ps.server.hosted_rows import HostedRows
from monolith.ps.server.push_gates import rows_owner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.ps.recovery.recording import Recording
    from monolith.ps.server.push_gates import PushGates
    from monolith.ps.server.server import FrameServer

_log = logging.getLogger(__name__)


class HostedStores:
    """The stores that clients open by name. Thread-safe.

    Args:
        place: Index of this server, and number of servers.
        frames: Server of the workers' batches.
        gates: Gates that hold the pushes to every store.
    """

    def __init__(self, place: tuple[int, int], frames: FrameServer, gates: PushGates) -> None:
        self._place = place
        self._frames = frames
        self.gates = gates
        self.recording: Recording = NoRecording()
        """Receives state changes for the recovery record."""
        self.is_published = False
        """Whether row changes are tracked from the start, for publication."""
        self._lock = threading.Lock()  # guards the fields below
        self._stores: dict[str, HostedRows] = {}
        self._initialized: set[str] = set()
        """Owners that a client has marked as initialized."""
        self._resumed: set[str] = set()
        """Owners that resumed from a saved state, whether marked as initialized or not."""

    def open(self, name: str, agreement: bytes, life: tuple[int, int], *, adopt: bool) -> tuple[HostedRows, bool]:
        """Returns the store of this name, and whether it is new.

        Args:
            name: Name of the store.
            agreement: Its tables.
            life: Generation and `life` of a new store.
            adopt: Sets this `life` on an existing store, too.

        Raises:
            FailedPreconditionError: the store has other tables.
        """
        with self._lock:
            rows = self._stores.get(name)
            if rows is not None and rows.is_unclaimed and rows.agreement != agreement:
                self._drop_recovered(rows)
                rows = None
            is_new = rows is None
            if rows is None:
                rows = HostedRows(
                    name, agreement, place=self._place, life=life, frames=self._frames, recording=self.recording
                )
                self._take(rows)
            require_agreement(agreement, rows.agreement, store=name)
            rows.is_unclaimed = False
        if adopt and rows.life != life:
            rows.take_life(*life)
        return rows, is_new

    def take_in(self, rows: Iterable[HostedRows], initialized: Iterable[str]) -> None:
        """Adds recovered stores and the owners that were initialized. Call it before the server accepts clients."""
        with self._lock:
            self._initialized.update(initialized)
            for share in rows:
                self._take(share)

    def find(self, name: str) -> HostedRows:
        """Returns the store of this name.

        Raises:
            NotFoundError: this server has no such store.
        """
        with self._lock:
            rows = self._stores.get(name)
            known = ", ".join(sorted(self._stores)) or "none"
        if rows is None:
            raise NotFoundError(
                f"store {name!r} does not exist on this server (it has: {known}): no client has opened it, or this"
                " server was restarted and lost it; open it again and restore a checkpoint"
            )
        return rows

    def names(self) -> list[str]:
        """Returns the names of all stores, sorted."""
        return [rows.name for rows in self.hosted()]

    def hosted(self) -> list[HostedRows]:
        """Returns all stores, sorted by name."""
        with self._lock:
            return [rows for _, rows in sorted(self._stores.items())]

    def drop(self, name: str) -> None:
        """Drops a store, if it exists."""
        with self._lock:
            rows = self._stores.pop(name, None)
            self._initialized.discard(rows_owner(name))
            self._resumed.discard(rows_owner(name))
        if rows is not None:
            self._end(rows)
            self.recording.note(is_needed=True)

    def initialized(self) -> frozenset[str]:
        """Returns the owners that a client has marked as initialized."""
        with self._lock:
            return frozenset(self._initialized)

    def resumed(self) -> frozenset[str]:
        """Returns the owners that resumed from a saved state."""
        with self._lock:
            return frozenset(self._resumed)

    def mark_resumed(self, owner: str) -> None:
        """Marks an owner as resumed from a saved state."""
        with self._lock:
            self._resumed.add(owner)

    def set_initialized(self, owners: Iterable[str]) -> None:
        """Marks owners as initialized."""
        with self._lock:
            self._initialized.update(owners)
        self.recording.note()

    def log_positions(self) -> bytes:
        """Returns the delta log positions of all stores, for the recovery record; does not block."""
        positions = {rows.name: rows.publishing.position() for rows in self.hosted()}
        return json.dumps(
            {name: position.to_bytes().decode() for name, position in positions.items() if position}
        ).encode()

    def take_log_positions(self, text: bytes) -> None:
        """Restores the delta log positions from the record that the stores were recovered from."""
        known = json.loads(text or b"{}")
        for rows in self.hosted():
            rows.publishing.recovered = LogPosition.from_bytes(known.get(rows.name, "").encode())

    def close(self) -> None:
        """Closes all stores."""
        with self._lock:
            stores = list(self._stores.values())
            self._stores.clear()
        for rows in stores:
            self._end(rows)

    def _take(self, rows: HostedRows) -> None:
        if self.is_published:
            rows.publishing.follow()
        self._stores[rows.name] = rows
        self.gates.add(rows_owner(rows.name), rows.owner)

    def _drop_recovered(self, rows: HostedRows) -> None:
        """Drops recovered rows of a model whose tables have changed. REQUIRES: the lock is held."""
        _log.warning("store %r: the recovered rows belong to tables that the model no longer has: dropped", rows.name)
        self._stores.pop(rows.name)
        self._initialized.discard(rows_owner(rows.name))
        self._end(rows)

    def _end(self, rows: HostedRows) -> None:
        self.gates.remove(rows_owner(rows.name))
        rows.close()
