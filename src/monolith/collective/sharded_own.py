"""The rows of one rank, restored by itself: from a folder that may hold those of no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.collective.sharded_cut import ShardedCut
from monolith.collective.sharded_store import ShardedStore
from monolith.tables.bucket_owners import emptied_by
from monolith.tables.history import ALL_BUCKETS, shared_buckets
from monolith.tables.local_restore import LocalRestore
from monolith.tables.local_store import agreed_stamps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monolith.tables.batch import BatchStamp
    from monolith.tables.history import OwnerClock
    from monolith.tables.row_block import RowBlock
    from monolith.tables.schema import Schema
    from monolith.tables.snapshot.manifest import Manifest
    from monolith.tables.store import Cut, LoadReport, Store

__all__ = ["OwnRows", "own_cut", "sharded_stores"]


def sharded_stores(stores: Mapping[str, Store]) -> dict[str, ShardedStore]:
    """Those whose rows the ranks share; none in a run of one."""
    return {name: store for name, store in stores.items() if isinstance(store, ShardedStore)}


def own_cut(cut: Cut) -> Cut:
    """What a cut holds of the rows of this rank, of which it may own none; in a run of one the cut itself."""
    return cut.take_own() if isinstance(cut, ShardedCut) else cut


class OwnRows:
    """What a restore sees of a `ShardedStore` where each rank reads its own folder; asks no other rank.

    All ranks restore at once. How far the run had come they take over together afterwards (`ShardedStore.resume`), by
    what `stamps` of any of them says.
    """

    def __init__(self, store: ShardedStore, buckets: range) -> None:
        self._store = store
        self.buckets = buckets
        """Those of this rank, which has some."""
        self.owned = (buckets,)
        """The same, as stores say it."""
        self.stamps: Mapping[int, BatchStamp] = {}
        """Worker -> its last batch in the rows that were loaded."""

    @property
    def schema(self) -> Schema:
        """What the rows hold."""
        return self._store.schema

    def prepare_restore(
        self,
        folder: str,
        manifest: Manifest,
        *,
        buckets: range = ALL_BUCKETS,
        ignore_unknown_tables: bool = False,
    ) -> LocalRestore:
        """Reads and checks those rows of this rank that are in some buckets."""
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
        """Takes over rows of this rank."""
        return self._store.own_rows.load(blocks, buckets=buckets, replace=replace)

    def resume(self, *, applied: Sequence[OwnerClock], generation: int) -> None:  # noqa: ARG002 - as stores have it
        """Notes how far the saved run had come."""
        self.stamps = agreed_stamps(applied, self.buckets)
