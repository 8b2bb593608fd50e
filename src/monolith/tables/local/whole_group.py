"""Shared code of `HashTable` and `TableGroup`: calls on all tables, updates without worker or stamp, pooling.

Ragged batches are pooled per example: `Pooling` selects the ids that count, and `GradientRows` the gradient row of each
of these ids. Dims: B examples, n ids, D dim of a row, N of first-n::

    ids        [ 7 3 | | 9 9 4 ]          row_splits [0, 2, 2, 5]
    sum, mean  [B, D]                     sqrtn: the sum / √n, n ids of an example
    first_n    [B, N, D]                  example 0 with N = 3: rows of 7, 3, then zeros
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, Unpack, overload

import numpy as np

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import snapshot
from monolith.tables.arrays import id_array
from monolith.tables.batch import Applied, made_from
from monolith.tables.history import ALL_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monolith import _core
    from monolith.tables.arrays import Ids
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


Combiner: TypeAlias = "Literal['sum', 'mean', 'sqrtn'] | tuple[Literal['first_n'], int]"
"""How the rows of one example become one result."""

SUM, MEAN, FIRST_N, SQRT_N = 0, 1, 2, 3
"""Numbers of the core."""


class Pooling(NamedTuple):
    """A combiner as the core takes it."""

    mode: int
    first_n: int

    def shape(self, batch: int, dim: int) -> tuple[int, ...]:
        """Returns the shape of the result and of its gradient."""
        return (batch, self.first_n, dim) if self.mode == FIRST_N else (batch, dim)


class GradientRows(NamedTuple):
    """The gradient of each id."""

    kept: NDArray[np.bool_] | None
    """Ids that contribute; None: all."""
    rows: NDArray[np.int32]
    """For each contributing id: its row of the flat gradient."""
    scales: NDArray[np.float32] | None
    """Factor of that row; None: 1."""


def parse_combiner(combiner: Combiner, subject: str) -> Pooling:
    """Checks a combiner and returns it as the core takes it."""
    if combiner == "sum":
        return Pooling(SUM, 0)
    if combiner == "mean":
        return Pooling(MEAN, 0)
    if combiner == "sqrtn":
        return Pooling(SQRT_N, 0)
    match combiner:
        case ("first_n", int(length)) if length > 0:
            return Pooling(FIRST_N, length)
        case ("first_n", length):
            raise InvalidArgumentError(f"{subject}: first_n needs a length > 0, got {length!r}")
    raise InvalidArgumentError(
        f"{subject}: combiner must be 'sum', 'mean', 'sqrtn' or ('first_n', n), got {combiner!r}"
    )


def split_array(row_splits: Ids, num_ids: int, subject: str) -> NDArray[np.int64]:
    """Returns int64 [B + 1], rising from 0 to the number of ids."""
    splits = id_array(row_splits, subject, "row_splits")
    if splits.ndim != 1 or len(splits) == 0:
        raise InvalidArgumentError(f"{subject}: row_splits must have shape (batch + 1,), got {splits.shape}")
    if splits[0] != 0 or splits[-1] != num_ids or (splits[1:] < splits[:-1]).any():
        raise InvalidArgumentError(
            f"{subject}: row_splits must rise from 0 to the number of ids ({num_ids}), got {splits[0]} to {splits[-1]}"
            f"{'' if (splits[1:] >= splits[:-1]).all() else ', falling in between'}"
        )
    return splits


def gradient_rows(pooling: Pooling, splits: NDArray[np.int64]) -> GradientRows:
    """Returns the rows of the pooled result's gradient that each id receives."""
    lengths = np.diff(splits)
    examples = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    if pooling.mode in {MEAN, SQRT_N}:
        counts = np.maximum(lengths, 1)
        shares = (1 / (counts if pooling.mode == MEAN else np.sqrt(counts))).astype(np.float32)
        return GradientRows(None, examples, np.repeat(shares, lengths))
    if pooling.mode == FIRST_N:
        places = np.arange(len(examples), dtype=np.int64) - np.repeat(splits[:-1], lengths)
        kept = places < pooling.first_n
        rows = examples[kept].astype(np.int64) * pooling.first_n + places[kept]
        if len(lengths) * pooling.first_n >= 2**31:
            raise InvalidArgumentError(f"first_n: batch * n must be below 2^31, got {len(lengths) * pooling.first_n}")
        return GradientRows(kept, rows.astype(np.int32), None)
    return GradientRows(None, examples, None)
