"""What a parameter server keeps of one store: the rows of its buckets, their history, and who may push to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.ps.agreement import configs_of, digest_of
from monolith.ps.held_gates import Owner
from monolith.ps.open_things import OpenCut, PreparedLoad, PreparedRows
from monolith.tables._local_history import LocalChangeReader, overlap
from monolith.tables.bucket_owners import owned_ranges, share_of
from monolith.tables.local_cut import LocalCut
from monolith.tables.local_restore import LocalRestore
from monolith.tables.local_store import LocalStore
from monolith.tables.snapshot.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.ps.server import FrameServer
    from monolith.tables.batch import BatchStamp
    from monolith.tables.history import Mark
    from monolith.tables.row_block import RowBlock

__all__ = ["HostedRows"]


class HostedRows:
    """The part of a store that one server has. Any thread may call it.

    Args:
        name: Of the store.
        agreement: Its tables, as all clients have them; this server gets its share of their caps.
        place: Number of this server, and of all servers.
        life: Generation and life, drawn by a client for all servers.
        frames: What answers the batches of workers.
    """

    def __init__(
        self, name: str, agreement: bytes, *, place: tuple[int, int], life: tuple[int, int], frames: FrameServer
    ) -> None:
        index, num_ps = place
        self.name = name
        self.agreement = agreement
        self.owned = owned_ranges(num_ps)[index]
        """The buckets of this server."""
        configs = configs_of(agreement)
        self.store = LocalStore({table: share_of(config, num_ps) for table, config in configs.items()})
        self.history = self.store.history
        self.history.take_life(*life)
        self._core = self.store.native.core
        self._frames = frames
        host = frames.host_rows(name, self._core, self.owned.start, self.owned.stop, digest_of(agreement))
        self.owner = Owner(host.gate, self.clock)
        """How its pushes are held."""

    def clock(self) -> Mapping[int, int]:
        """Worker -> number of its last batch in these rows."""
        return {stamp.worker: stamp.seq for stamp in self._core.stamps()}

    @property
    def steps(self) -> int:
        """Batches of all workers in these rows."""
        return self._core.steps()

    def close(self) -> None:
        """Ends conversations, readers and threads of these rows."""
        self._frames.drop_rows(self.name)
        self.store.close()

    # Moments

    @property
    def life(self) -> tuple[int, int]:
        """Generation and life in force."""
        present = self.history.at(0)
        return present.generation, present.life

    @property
    def last_epoch(self) -> int:
        """Of the last mark."""
        return self._core.last_mark()

    def newest_times(self) -> list[int]:
        """Of each table, Unix seconds."""
        return [self._core.newest_time(table) for table in range(len(self.store.native))]

    def raise_newest_times(self, times: Sequence[int]) -> None:
        """Takes over the newest times of all servers."""
        if len(times) != len(self.store.native):
            raise InvalidArgumentError(
                f"store {self.name!r}: newest times of {len(self.store.native)} tables expected, got {len(times)}"
            )
        for table, time in enumerate(times):
            self._core.raise_newest_time(table, time)

    def cut_at(self, epoch: int, newest_times: Sequence[int]) -> OpenCut:
        """Freezes the rows at this epoch, or at a later one if it is behind already."""
        self.raise_newest_times(newest_times)
        self.history.mark_at(epoch - 1)
        return OpenCut(LocalCut(self.store.native, self.history, self._core.cut(), self.owned))

    # Readers

    def open_reader(self, name: str, at: Mark | None, epoch: int | None) -> tuple[int | None, bool]:
        """How far a reader has read (None: there is none), and whether it was there before.

        Args:
            name: Of the reader.
            at: Where it is to go on.
            epoch: Where it begins if it is new; a mark is made at it.
        """
        before = self.history.reader_epoch(name)
        if at is None and before is None and epoch is None:
            return None, False
        if at is None and before is None and epoch is not None:
            self.history.begin_reader(name, epoch)
        else:
            self.history.open_reader(name, at)
        return self.history.reader_epoch(name), before is not None

    def reader(self, name: str, opened_at: Mark) -> LocalChangeReader:
        """A reader that was opened at a mark of some life."""
        return LocalChangeReader(self.history, name, opened_at)

    def changes(self, reader: LocalChangeReader, buckets: range, *, state: bool) -> Iterator[RowBlock]:
        """What it has not read, of the buckets that are here."""
        return reader.changes(state=state, buckets=overlap(self.owned, buckets))

    def advance(self, reader: LocalChangeReader, to: Mark) -> None:
        """It has read everything up to `to`; where it is further already, it stays."""
        epoch = self.history.epoch_of(to)
        self.history.advance(reader.name, max(epoch, self.history.position_of(reader)))

    # Saving and restoring

    def prepare_load(self, blocks: Sequence[RowBlock], *, buckets: range, emptied: range | None) -> PreparedLoad:
        """Blocks to be loaded, after they were checked."""
        return PreparedLoad(self.store, blocks, buckets=buckets, emptied=emptied)

    def prepare_restore(
        self, folder: str, manifest: bytes, *, buckets: range, emptied: range, ignore_unknown_tables: bool
    ) -> PreparedRows:
        """Files to be loaded, after they were checked."""
        restore = LocalRestore(
            self.store.native,
            folder,
            Manifest.from_bytes(manifest, origin=f"manifest of '{folder}'"),
            buckets,
            emptied=emptied,
            ignore_unknown_tables=ignore_unknown_tables,
        )
        return PreparedRows(restore)

    def resume(self, stamps: Sequence[BatchStamp], life: tuple[int, int]) -> None:
        """Goes on from a saved state; readers and incarnations of workers end."""
        self.history.take_life(*life)
        self._core.resume(
            [_core.BatchStamp(each.worker, each.seq, each.position, each.event_time_ms) for each in stamps]
        )
