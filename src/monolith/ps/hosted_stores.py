"""The stores of one server by name, and which of its owners have state."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

from monolith.errors import NotFoundError
from monolith.ps.agreement import require_agreement
from monolith.ps.held_gates import rows_owner
from monolith.ps.hosted_rows import HostedRows
from monolith.ps.recovery.recording import NoRecording
from monolith.publishing.log_position import LogPosition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.ps.held_gates import HeldGates
    from monolith.ps.recovery.recording import Recording
    from monolith.ps.server import FrameServer

__all__ = ["HostedStores"]

_log = logging.getLogger(__name__)


class HostedStores:
    """What clients open by name. Any thread may call it.

    Args:
        place: Number of this server, and of all servers.
        frames: What answers the batches of workers.
        gates: Which hold the pushes to every store.
    """

    def __init__(self, place: tuple[int, int], frames: FrameServer, gates: HeldGates) -> None:
        self._place = place
        self._frames = frames
        self.gates = gates
        self.recording: Recording = NoRecording()
        """Who writes down what changes."""
        self.is_published = False
        """Whether rows are followed from their beginning on, for who publishes them."""
        self._lock = threading.Lock()  # guards what follows
        self._stores: dict[str, HostedRows] = {}
        self._initialized: set[str] = set()
        """Owners of which a client has said that they have state."""
        self._resumed: set[str] = set()
        """Owners that went on from a saved state, whether somebody has said so or not."""

    def open(self, name: str, agreement: bytes, life: tuple[int, int], *, adopt: bool) -> tuple[HostedRows, bool]:
        """The store of this name, and whether it is new.

        Args:
            name: Of the store.
            agreement: Its tables.
            life: Of a new store.
            adopt: One that is there takes this life, too.

        Raises:
            FailedPreconditionError: it has other tables.
        """
        with self._lock:
            rows = self._stores.get(name)
            if rows is not None and rows.is_unclaimed and rows.agreement != agreement:
                self._drop_recovered(rows)
                rows = None
            is_new = rows is None
            if rows is None:
                rows = HostedRows(
                    name,
                    agreement,
                    place=self._place,
                    life=life,
                    frames=self._frames,
                    recording=self.recording,
                )
                self._take(rows)
            require_agreement(agreement, rows.agreement, store=name)
            rows.is_unclaimed = False
        if adopt and rows.life != life:
            rows.take_life(*life)
        return rows, is_new

    def take_in(self, rows: Iterable[HostedRows], initialized: Iterable[str]) -> None:
        """Stores that came back, and the owners that had state; before anybody calls."""
        with self._lock:
            self._initialized.update(initialized)
            for each in rows:
                self._take(each)

    def find(self, name: str) -> HostedRows:
        """The store of this name.

        Raises:
            NotFoundError: it is not here.
        """
        with self._lock:
            rows = self._stores.get(name)
            known = ", ".join(sorted(self._stores)) or "none"
        if rows is None:
            raise NotFoundError(
                f"store {name!r} is not here (there is {known}): nobody has opened it, or this server was started anew"
                " and has lost it; open it again and restore a checkpoint"
            )
        return rows

    def names(self) -> list[str]:
        """Of all stores."""
        return [rows.name for rows in self.hosted()]

    def hosted(self) -> list[HostedRows]:
        """All stores, by name."""
        with self._lock:
            return [rows for _, rows in sorted(self._stores.items())]

    def drop(self, name: str) -> None:
        """Forgets a store; nothing where there is none."""
        with self._lock:
            rows = self._stores.pop(name, None)
            self._initialized.discard(rows_owner(name))
            self._resumed.discard(rows_owner(name))
        if rows is not None:
            self._end(rows)
            self.recording.note(is_needed=True)

    def initialized(self) -> frozenset[str]:
        """Owners of which a client has said that they have state."""
        with self._lock:
            return frozenset(self._initialized)

    def resumed(self) -> frozenset[str]:
        """Owners that went on from a saved state."""
        with self._lock:
            return frozenset(self._resumed)

    def mark_resumed(self, owner: str) -> None:
        """It goes on from a saved state."""
        with self._lock:
            self._resumed.add(owner)

    def set_initialized(self, owners: Iterable[str]) -> None:
        """These have state from now on."""
        with self._lock:
            self._initialized.update(owners)
        self.recording.note()

    def log_positions(self) -> bytes:
        """Where the delta logs of all stores are, for the recovery record; waits for nobody."""
        found = {rows.name: rows.publishing.position() for rows in self.hosted()}
        return json.dumps({name: each.to_bytes().decode() for name, each in found.items() if each}).encode()

    def take_log_positions(self, text: bytes) -> None:
        """Where they were when the record was written that stores have come back from."""
        known = json.loads(text or b"{}")
        for rows in self.hosted():
            rows.publishing.recovered = LogPosition.from_bytes(known.get(rows.name, "").encode())

    def close(self) -> None:
        """Ends them all."""
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
        """A model that has changed begins anew. REQUIRES: the lock is held."""
        _log.warning("store %r: the rows that came back are of other tables than the model of now: dropped", rows.name)
        self._stores.pop(rows.name)
        self._initialized.discard(rows_owner(rows.name))
        self._end(rows)

    def _end(self, rows: HostedRows) -> None:
        self.gates.remove(rows_owner(rows.name))
        rows.close()
