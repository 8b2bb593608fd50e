"""Restore of the rows of one rank by itself, from a folder that may hold only the rows of that rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.collective.sharded.cut import ShardedCut
from monolith.collective.sharded.store import ShardedStore
from monolith.tables.bucket_owners import emptied_by
from monolith.tables.history import ALL_BUCKETS, shared_buckets
from monolith.tables.local.restore import LocalRestore
from monolith.tables.local.store import agreed_stamps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monolith.tables.batch import BatchStamp
    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import OwnerClock
    from monolith.tables.schema import Schema
    from monolith.tables.snapshot.manifest import SnapshotManifest
    from monolith.tables.store import Cut, LoadReport, Store

__all__ = ["OwnRows", "own_cut", "sharded_stores"]


def sharded_stores(stores: Mapping[str, Store]) -> dict[str, ShardedStore]:
    """Returns the stores whose rows the ranks share; none in a run of one."""
    return {name: store for name, store in stores.items() if isinstance(store, ShardedStore)}


def own_cut(cut: Cut) -> Cut:
    """Returns the part of a cut for this rank, which may own no rows; in a run of one the cut itself."""
    return cut.take_own() if isinstance(cut, ShardedCut) else cut


class OwnRows:
    """The view of a `ShardedStore` for a restore in which each rank reads its own folder, without other ranks.

    All ranks restore concurrently. Afterwards they resume together (`ShardedStore.resume`), from the `stamps` of any of
    them.
    """

    def __init__(self, store: ShardedStore, buckets: range) -> None:
        self._store = store
        self.buckets = buckets
        """Buckets of this rank; not empty."""
        self.owned = (buckets,)
        """The buckets as a tuple, as in the interface of stores."""
        self.stamps: Mapping[int, BatchStamp] = {}
        """Worker -> its last batch in the rows that were loaded."""

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        return self._store.schema

    def prepare_restore(
        self,
        folder: str,
        manifest: SnapshotManifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> LocalRestore:
        """Reads and checks the rows of this rank in some buckets."""
        own = shared_buckets(self.buckets, buckets)
        return LocalRestore(
            self._store.native,
            folder,
            manifest,
            own,
            emptied=emptied_by(own, buckets),
            ignore_unknown_tables=ignore_unknown_tables,
        )

    def load(self, blocks: Iterable[RowBlock], *, buckets: range, replace: bool) -> LoadReport:
        """Loads rows of this rank."""
        return self._store.own_rows.load(blocks, buckets=buckets, replace=replace)

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:  # noqa: ARG002 - as stores have it
        """Records the progress of the saved run."""
        self.stamps = agreed_stamps(applied, self.buckets)
