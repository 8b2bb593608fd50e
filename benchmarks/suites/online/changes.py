"""What a publisher pays to read which rows have changed: processor time of one thread."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.suites.online.followed_tables import TOUCHED, FollowedTables, thread_ms
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, spread
from monolith.cli._bench.timing import quiet_collector

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting

LIMITS_MS = dict(zip(TOUCHED, (20.0, 1.5, 0.25), strict=True))


def measure(setting: Setting) -> list[Measurement]:
    """Measures reading serving rows of some of many rows, in one buffer, against the same blocks one by one."""
    ours.use_threads(1)
    tables = FollowedTables(setting.large_rows)
    packed: dict[int, list[float]] = {count: [] for count in TOUCHED}
    one_by_one: dict[int, list[float]] = {count: [] for count in TOUCHED}
    with quiet_collector():
        for _ in range(setting.rounds):
            for count in TOUCHED:
                reached = tables.touch(count)
                packed[count].append(thread_ms(tables.reader.packed_changes, state=False)[0])
                tables.reader.advance(reached)
                reached = tables.touch(count)
                one_by_one[count].append(thread_ms(lambda: list(tables.reader.changes(state=False)))[0])
                tables.reader.advance(reached)
    return [
        Measurement(
            row="online_changes",
            measure=f"changes of {setting.large_rows:,} rows, float16, {min(count, setting.large_rows):,} touched",
            figure=statistics.median(packed[count]),
            unit="ms",
            limit=limit,
            sense=Sense.AT_MOST,
            note=f"{spread(packed[count])}; blocks one by one {statistics.median(one_by_one[count]):.3g} ms",
        )
        for count, limit in LIMITS_MS.items()
    ]
