"""One server's share of a store: rows, history and the gate of their pushes; and the stores of a server by name."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, TypeVar

from monolith.deltalog.publish import LogPosition
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.ps.agreement import configs_of, digest_of, require_agreement
from monolith.ps.recovery.entries import Lineage
from monolith.ps.recovery.recording import NoRecording
from monolith.ps.server.client_sessions import OpenCut, PreparedLoad, PreparedRows
from monolith.ps.server.hosted_publisher import HostedPublisher
from monolith.ps.server.push_gates import Owner, rows_owner
from monolith.tables import owned_ranges, share_of, shared_buckets
from monolith.tables.local import LocalChangeReader, LocalCut, LocalRestore, LocalStore, stamp_from_core, stamp_to_core
from monolith.tables.snapshot import SnapshotManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from monolith.ps.recovery.recording import Recording
    from monolith.ps.server.push_gates import PushGates
    from monolith.ps.server.server import FrameServer
    from monolith.tables import BatchStamp, ChangePosition
    from monolith.tables.formats import RowBlock

_log = logging.getLogger(__name__)
T = TypeVar("T")


class HostedRows:
    """The share of a store that one server has. Thread-safe.

    Args:
        name: Name of the store.
        agreement: Its tables, as all clients have them; this server gets its share of their caps.
        place: Index of this server, and number of servers.
        life: Generation and `life`, drawn by a client for all servers.
        frames: Server of the workers' batches.
        recording: Receives state changes for the recovery record.
        recovered: Recovered rows and their lineage; None: start without rows.
    """

    def __init__(
        self,
        name: str,
        agreement: bytes,
        *,
        place: tuple[int, int],
        life: tuple[int, int],
        frames: FrameServer,
        recording: Recording | None = None,
        recovered: tuple[LocalStore, Lineage] | None = None,
    ) -> None:
        index, num_ps = place
        self.name = name
        self.agreement = agreement
        self.owned = owned_ranges(num_ps)[index]
        """Buckets of this server."""
        self.store, self.lineage = (store_of_share(agreement, num_ps), Lineage()) if recovered is None else recovered
        self.is_unclaimed = recovered is not None
        """Recovered, and no client has opened it yet."""
        self.history = self.store.history
        self.history.take_life(*life)
        self._core = self.store.native.core
        self._frames = frames
        self._recording = NoRecording() if recording is None else recording
        if recovered is None:
            self._recording.follow(self.history)
        host = frames.host_rows(name, self._core, self.owned.start, self.owned.stop, digest_of(agreement))
        self.owner = Owner(host.gate, self.clock)
        """Gate and clock of the pushes to these rows."""
        self.publishing = HostedPublisher(self, is_recovered=recovered is not None)
        """Publication of row changes to a delta log."""

    def clock(self) -> Mapping[int, int]:
        """Returns worker -> number of its last applied batch."""
        return {stamp.worker: stamp.seq for stamp in self._core.stamps()}

    @property
    def steps(self) -> int:
        """Number of applied batches of all workers."""
        return self._core.steps()

    def stamps(self) -> dict[int, BatchStamp]:
        """Returns worker -> stamp of its last applied batch."""
        return {stamp.worker: stamp_from_core(stamp) for stamp in self._core.stamps()}

    def num_bytes(self) -> int:
        """Returns the size of all rows in saved form."""
        counts = {name: self._core.size(number) for number, name in enumerate(self.store.native.names)}
        return self.store.schema.num_bytes(counts, state=True)

    def take_life(self, generation: int, life: int) -> None:
        """Sets the generation and `life` that a client has drawn for all servers; rows and workers stay."""
        self.history.take_life(generation, life)
        self._recording.note(is_needed=True)

    def close(self) -> None:
        """Ends connections, readers and threads of these rows."""
        self._frames.drop_rows(self.name)
        self.publishing.close()
        self.store.close()

    # Marks and cuts

    @property
    def life(self) -> tuple[int, int]:
        """The current generation and `life`."""
        present = self.history.at(0)
        return present.generation, present.life

    @property
    def last_epoch(self) -> int:
        """Epoch of the last mark."""
        return self._core.last_mark()

    def newest_times(self) -> list[int]:
        """Returns the newest event time of each table, Unix seconds."""
        return [self._core.newest_time(table) for table in range(len(self.store.native))]

    def raise_newest_times(self, times: Sequence[int]) -> None:
        """Raises the newest event times to those of all servers."""
        if len(times) != len(self.store.native):
            raise InvalidArgumentError(
                f"store {self.name!r}: newest times of {len(self.store.native)} tables expected, got {len(times)}"
            )
        for table, time in enumerate(times):
            self._core.raise_newest_time(table, time)

    def erase(self, table: str, ids: Tensor, buckets: Tensor | None) -> int:
        """Removes rows and admission counts, and triggers the next increment of the recovery record."""
        rows = self.store.erase(table, ids, buckets=buckets)
        self._recording.wake()
        return rows

    def cut_at(self, epoch: int, newest_times: Sequence[int]) -> OpenCut:
        """Freezes the rows at this epoch, or at a later one if the epoch is already past."""
        self.raise_newest_times(newest_times)
        self.history.mark_at(epoch - 1)
        cut = LocalCut(self.store.native, self.history, self._core.cut(), self.owned)
        lineage = self.lineage.number
        return OpenCut(cut, on_written=lambda snapshot_id: self._written(lineage, snapshot_id, cut.mark.epoch))

    def changes_since(self, epoch: int) -> Iterator[RowBlock]:
        """Returns tombstones and the current full rows that changed after an epoch."""
        return self.history.changes(epoch, state=True, buckets=self.owned)

    # Readers

    def open_reader(self, name: str, at: ChangePosition | None, epoch: int | None) -> tuple[int | None, bool]:
        """Returns how far a reader has read (None: there is no such reader), and whether it existed before.

        `epoch` is where a new reader begins; a mark is made at it.
        """
        before = self.history.reader_epoch(name)
        if at is None and before is None and epoch is None:
            return None, False
        if at is None and before is None and epoch is not None:
            self.history.begin_reader(name, epoch)
        else:
            self.history.open_reader(name, at)
        return self.history.reader_epoch(name), before is not None

    def reader(self, name: str, opened_at: ChangePosition) -> LocalChangeReader:
        """Returns a reader that was opened at a mark, possibly of an earlier `life`."""
        return LocalChangeReader(self.history, name, opened_at)

    def changes(self, reader: LocalChangeReader, buckets: range, *, state: bool) -> Iterator[RowBlock]:
        """Returns unread changes in the buckets of this server."""
        return reader.changes(state=state, buckets=shared_buckets(self.owned, buckets))

    def advance(self, reader: LocalChangeReader, to: ChangePosition) -> None:
        """Advances the reader to `to`; never moves it back."""
        epoch = self.history.epoch_of(to)
        self.history.advance(reader.name, max(epoch, self.history.position_of(reader)))

    # Saving and restoring

    def prepare_load(self, blocks: Sequence[RowBlock], *, buckets: range, emptied: range | None) -> PreparedLoad:
        """Checks blocks, and prepares to load them."""
        around = None if emptied is None else lambda load: self._replace(load, None)
        return PreparedLoad(self.store, blocks, buckets=buckets, emptied=emptied, around=around)

    def prepare_restore(
        self, folder: str, manifest: bytes, *, buckets: range, emptied: range, ignore_unknown_tables: bool
    ) -> PreparedRows:
        """Checks files, and prepares to load them."""
        parsed = SnapshotManifest.from_bytes(manifest, origin=f"manifest of '{folder}'")
        restore = LocalRestore(
            self.store.native, folder, parsed, buckets, emptied=emptied, ignore_unknown_tables=ignore_unknown_tables
        )
        is_whole = buckets.start <= self.owned.start and self.owned.stop <= buckets.stop and parsed.state
        return PreparedRows(restore, around=lambda load: self._replace(load, parsed.snapshot_id if is_whole else None))

    def resume(self, stamps: Sequence[BatchStamp], life: tuple[int, int]) -> None:
        """Resumes from a saved state; ends readers and incarnations of workers."""
        owner = rows_owner(self.name)
        with self._recording.replacing(owner):
            self.history.take_life(*life)
            self._core.resume([stamp_to_core(stamp) for stamp in stamps])
        self._recording.resumed(owner)

    def _replace(self, load: Callable[[], T], snapshot_id: int | None) -> T:
        """Loads rows in place of the existing ones."""
        with self._recording.replacing(rows_owner(self.name)), self.publishing.replacing():
            if self._recording.is_on:
                self.history.stop_keeping()  # otherwise all rows would be listed as changed
            loaded = load()
            if self._recording.is_on:
                self.lineage.begin(snapshot_id, self.history.keep())
            return loaded

    def _written(self, lineage: int, snapshot_id: int, epoch: int) -> None:
        """Records that a cut was written, before a checkpoint with it can be committed."""
        if self._recording.is_on and self.lineage.number == lineage:
            self.lineage.saved_as(snapshot_id, epoch)
            self._recording.note()


def store_of_share(agreement: bytes, num_ps: int) -> LocalStore:
    """Returns a store with the tables of an agreement, without rows, with the share of one of `num_ps` servers."""
    return LocalStore({table: share_of(config, num_ps) for table, config in configs_of(agreement).items()})


class HostedStores:
    """The stores that clients open by name. Thread-safe."""

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

        With `adopt` an existing store gets this `life`, too.

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
                self._add(rows)
            require_agreement(agreement, rows.agreement, store=name)
            rows.is_unclaimed = False
        if adopt and rows.life != life:
            rows.take_life(*life)
        return rows, is_new

    def add_recovered(self, rows: Iterable[HostedRows], initialized: Iterable[str]) -> None:
        """Adds recovered stores and the owners that were initialized. Call it before the server accepts clients."""
        with self._lock:
            self._initialized.update(initialized)
            for share in rows:
                self._add(share)

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

    def _add(self, rows: HostedRows) -> None:
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
