"""What a follower pays to take rows that have changed: processor time of one thread."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.suites.online.followed_tables import TOUCHED, FollowedTables, thread_ms
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, spread
from monolith.cli._bench.timing import quiet_collector
from monolith.tables.history import ALL_BUCKETS

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting
    from monolith.tables import LocalStore, PackedBlocks

LIMITS_MS = dict(zip(TOUCHED[:2], (20.0, 1.0), strict=True))


def measure(setting: Setting) -> list[Measurement]:
    """Measures serving rows in one buffer into a table that has all rows, against the same blocks one by one."""
    ours.use_threads(1)
    tables = FollowedTables(setting.large_rows)
    follower = tables.new_follower()
    packed: dict[int, list[float]] = {count: [] for count in LIMITS_MS}
    one_by_one: dict[int, list[float]] = {count: [] for count in LIMITS_MS}
    blocks = dict.fromkeys(LIMITS_MS, 0)
    with quiet_collector():
        for _ in range(setting.rounds):
            for count in LIMITS_MS:
                taken = _changes(tables, count)
                blocks[count] = taken.count
                packed[count].append(thread_ms(_take, follower, taken)[0])
                others = _changes(tables, count)
                one_by_one[count].append(thread_ms(_take_one_by_one, follower, others)[0])
    return [
        Measurement(
            row="online_follower",
            measure=f"a follower of {setting.large_rows:,} rows takes {min(count, setting.large_rows):,} of them",
            figure=statistics.median(packed[count]),
            unit="ms",
            limit=limit,
            sense=Sense.AT_MOST,
            note=f"{blocks[count]:,} blocks; {spread(packed[count])}; blocks one by one"
            f" {statistics.median(one_by_one[count]):.3g} ms",
        )
        for count, limit in LIMITS_MS.items()
    ]


def _changes(tables: FollowedTables, count: int) -> PackedBlocks:
    reached = tables.touch(count)
    packed = tables.reader.packed_changes(state=False)
    tables.reader.advance(reached)
    return packed


def _take(follower: LocalStore, blocks: PackedBlocks) -> None:
    follower.load(blocks, buckets=ALL_BUCKETS, replace=False)


def _take_one_by_one(follower: LocalStore, blocks: PackedBlocks) -> None:
    follower.load(list(blocks), buckets=ALL_BUCKETS, replace=False)
