"""Several owners that divide the buckets among them: their ranges, their statistics together, their cut."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS, NUM_BUCKETS, Cut
from monolith.tables.slot_keys import has_explicit_bucket
from monolith.tables.store import LoadReport, StoreStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monolith.tables.formats.row_block import RowBlock
    from monolith.tables.history import ChangePosition, OwnerClock
    from monolith.tables.schema import Schema
    from monolith.tables.table_config import TableConfig


_RATIOS = ("index_load", "overhead_per_id")
"""Numbers of a table that are averaged over its rows; all others are added up."""


def owned_ranges(num_owners: int) -> tuple[range, ...]:
    """Returns the buckets of each owner: owner k has the buckets b with b * num_owners // 1024 == k.

    >>> owned_ranges(3)
    (range(0, 342), range(342, 683), range(683, 1024))
    """
    starts = [-(-NUM_BUCKETS * number // num_owners) for number in range(num_owners + 1)]
    return tuple(range(begin, end) for begin, end in pairwise(starts))


def require_owners(num_owners: int, *, subject: str, name: str) -> None:
    """Checks that a number of owners can divide the buckets.

    Raises:
        InvalidArgumentError: it cannot.
    """
    if not 1 <= num_owners <= NUM_BUCKETS:
        raise InvalidArgumentError(f"{subject}: {name} must be from 1 to {NUM_BUCKETS}, got {num_owners}")


def share_of(config: TableConfig, num_owners: int) -> TableConfig:
    """Returns the config of one owner's part of a table: caps are divided."""
    caps = {name: getattr(config, name) for name in ("max_rows", "max_bytes")}
    return replace(config, **{name: max(1, cap // num_owners) for name, cap in caps.items() if cap is not None})


def emptied_by(own: range, buckets: range) -> range:
    """Returns the buckets an owner empties: its own, or all if all are replaced, which also resets newest times."""
    return ALL_BUCKETS if buckets == ALL_BUCKETS else own


def require_assignable(block: RowBlock, schema: Schema, *, subject: str) -> None:
    """Checks that `Store.assign` takes a block: full rows of one bucket, and so of one owner.

    Raises:
        InvalidArgumentError: the block has ids of other buckets, or is not a block of full rows.
    """
    wide_slots = schema.tables[block.table].wide_slots if block.table < len(schema.tables) else ()
    explicit = block.keys[has_explicit_bucket(block.keys, wide_slots)]
    if not (_core.bucket_of(explicit) == block.bucket).all():
        raise InvalidArgumentError(f"{subject}: assign takes ids of the block's own bucket, got others in {block!r}")
    if block.kind is not BlockKind.FULL:
        raise InvalidArgumentError(f"{subject}: assign takes a block of full rows, got {block!r}")


def sum_of_reports(parts: Sequence[LoadReport]) -> LoadReport:
    """Returns the totals over all owners."""
    return LoadReport(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(LoadReport)})


def sum_by_slot(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Returns rows by slot over all owners."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def stats_of_all(parts: Sequence[StoreStats], *, open_plans: int, times_ahead: int) -> StoreStats:
    """Returns the statistics over all owners; for each worker the last batch that every owner has."""
    workers = set.intersection(*(set(part.applied) for part in parts))
    return StoreStats(
        rows=sum(part.rows for part in parts),
        memory_bytes=sum(part.memory_bytes for part in parts),
        applied={worker: min(part.applied[worker] for part in parts) for worker in sorted(workers)},
        open_plans=open_plans,
        tables={name: _table_stats([part.tables[name] for part in parts]) for name in parts[0].tables},
        times_ahead=times_ahead,
    )


def _table_stats(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    rows = sum(part["rows"] for part in parts)
    summed = {name: sum(part[name] for part in parts) for name in parts[0] if name not in _RATIOS}
    ratios = {name: sum(part[name] * part["rows"] for part in parts) / rows if rows else 0.0 for name in _RATIOS}
    return {**summed, **ratios}


class OwnersCut(Cut):
    """The part of `Cut` that needs no call to an owner. Thread-safe.

    Args:
        mark: Position of the cut in the history.
        applied: The last batch of every worker at each owner, by ascending buckets.
        rows: Table -> its rows.
    """

    def __init__(self, *, mark: ChangePosition, applied: Sequence[OwnerClock], rows: Mapping[str, int]) -> None:
        self._mark = mark
        self._applied = tuple(applied)
        self._rows = rows
        self._taking = threading.Lock()
        self._taken: set[int] = set()

    @property
    def mark(self) -> ChangePosition:
        """Position of the cut in the history."""
        return self._mark

    @property
    def applied(self) -> Sequence[OwnerClock]:
        """The last batch of every worker at each owner."""
        return self._applied

    @property
    def rows(self) -> Mapping[str, int]:
        """Table -> its rows."""
        return self._rows

    def _take(self, buckets: range) -> None:
        """Rejects buckets that were read before, so that no owner rejects them after others have released theirs.

        Raises:
            FailedPreconditionError: a bucket was read before.
        """
        with self._taking:
            again = min(self._taken.intersection(buckets), default=None)
            if again is not None:
                raise FailedPreconditionError(
                    f"cut: bucket {again} of this cut was read before; a cut can be read once"
                )
            self._taken.update(buckets)

    def _give_back(self, buckets: range) -> None:
        """Makes buckets readable again that were taken but not read."""
        with self._taking:
            self._taken.difference_update(buckets)
