"""What `HashTable` and `TableGroup` share: calls on all tables of a store, and updates without worker and stamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, Unpack, overload

from monolith.errors import FailedPreconditionError
from monolith.tables import snapshot
from monolith.tables.batch import Applied, made_from
from monolith.tables.history import ALL_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from monolith import _core
    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import ChangePosition, ChangeReader
    from monolith.tables.local.cut import LocalCut
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.local.store import LocalStore
    from monolith.tables.schema import Schema
    from monolith.tables.snapshot import RestoreReport, SaveHandle, SaveReport, SnapshotSaveConfig
    from monolith.tables.snapshot.location import SnapshotPath


_READER = "mark()"
"""Name of the reader of callers that use marks instead of opening a reader."""


class WholeGroup:
    """Calls on all tables of a group. A table of a larger group rejects them and names the group's."""

    store: LocalStore
    """The store of the rows, through which a model trains."""
    native: NativeTables
    """The tables as the core keeps them; for engine code."""
    _owns_group: bool

    @property
    def schema(self) -> Schema:
        """Schema of the rows; two groups can exchange rows iff their schemas agree."""
        return self.native.schema

    def cut(self) -> LocalCut:
        """Freezes the state of all tables while writers continue; release the cut after reading it."""
        self._require_owner("cut")
        return self.store.cut()

    def mark(self) -> ChangePosition:
        """Closes the current epoch: later writes are in `changes(since=mark)`.

        From the first mark on the tables record removals, until `forget`. A long-lived follower should open a reader of
        its own, `store.open_reader(name)`.
        """
        return self._reader().next_mark()

    def changes(
        self, since: ChangePosition | None = None, *, buckets: range = ALL_BUCKETS, state: bool = True
    ) -> Iterator[RowBlock]:
        """Yields current rows and tombstones of everything touched after a mark; None: since the beginning."""
        self._require_owner("changes")
        return self.store.history.changes(self._epoch(since), buckets=buckets, state=state)

    def forget(self, before: ChangePosition) -> None:
        """Discards the history before this mark; changes before it can no longer be read."""
        self._require_owner("forget")
        self._reader().advance(before)

    @overload
    def save(
        self, path: SnapshotPath, *, background: Literal[False] = False, **options: Unpack[SnapshotSaveConfig]
    ) -> SaveReport: ...
    @overload
    def save(
        self, path: SnapshotPath, *, background: Literal[True], **options: Unpack[SnapshotSaveConfig]
    ) -> SaveHandle: ...
    def save(
        self, path: SnapshotPath, *, background: bool = False, **options: Unpack[SnapshotSaveConfig]
    ) -> SaveReport | SaveHandle:
        """Writes one frozen state to a folder while writers continue; options are those of `snapshot.save`."""
        self._require_owner("save")
        return snapshot.save(self.store, path, background=background, **options)

    def restore(
        self, path: SnapshotPath, *, buckets: range | None = None, ignore_unknown_tables: bool = False
    ) -> RestoreReport:
        """Replaces the rows by those that `save` wrote; a damaged or foreign folder leaves everything unchanged."""
        self._require_owner("restore")
        return snapshot.restore(self.store, path, buckets=buckets, ignore_unknown_tables=ignore_unknown_tables)

    def close(self) -> None:
        """Ends the readers of changes. The tables stay usable."""
        self.store.close()

    def _reader(self) -> ChangeReader:
        """Returns the reader that keeps the history after the marks given out."""
        return self.store.open_reader(_READER)

    def _epoch(self, since: ChangePosition | None) -> int:
        return 0 if since is None else self.store.history.epoch_of(since)

    def _require_owner(self, call: str) -> None:
        if not self._owns_group:
            names = ", ".join(self.native.names)
            raise FailedPreconditionError(
                f"{call}() applies to the entire group ({names}), not to one table of it; write group.{call}(...)"
            )


PER_ID, PER_UNIQUE_ID = 0, 1
"""Layout of gradients: one row for each input id, or one for each distinct id in plan order."""

Pooled: TypeAlias = "tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]"
"""The row of each id in gradients that several ids share, and its factor; None: row i for id i, times 1."""


class DirectUpdate(NamedTuple):
    """One optimizer step, with arrays as the core takes them."""

    gradients: NDArray[np.float32]
    layout: int
    rates: NDArray[np.float32]
    step: int | None
    """None: 0 for optimizers; admission counts the offers of an id."""
    times: NDArray[np.int64]
    """Times as the caller gave them."""
    pooled: Pooled = (None, None)
    scale: float = 1.0
    latest: NDArray[np.float32] | None = None


def apply_directly(native: NativeTables, plan: _core.Plan, update: DirectUpdate) -> Applied:
    """Applies the update and counts the times that were set back."""
    bounded = native.event_clock.bounded(update.times)
    applied = native.core.apply(
        plan,
        update.gradients,
        update.layout,
        *update.pooled,
        update.rates,
        update.step or 0,
        bounded.times,
        update.scale,
        update.latest,
        has_step=update.step is not None,
    )
    native.event_clock.count(bounded)
    return made_from(Applied, applied)
