"""The system's clock is a `Clock`, and keeps its promises."""

from __future__ import annotations

import re
import time
from pathlib import Path

from monolith.clock import Clock, SystemClock


def test_now_is_unix_time() -> None:
    clock: Clock = SystemClock()
    before = time.time()
    assert before <= clock.now() <= time.time()


def test_sleep_lasts_at_least_as_long_as_requested() -> None:
    clock: Clock = SystemClock()
    started = clock.monotonic()
    clock.sleep(0.01)
    assert clock.monotonic() - started >= 0.01


WALL_CLOCK = re.compile(
    r"time\.time\(|time_ns\(|datetime\.now|utcnow|date\.today|gmtime\(\)|clock\.now\(\)|\bst_[cm]time"
    r"|SystemClock\(\)\)\.now\(\)|system_clock|gettimeofday|CLOCK_REALTIME|std::time\("
)
MAY_JUMP = {
    "checkpoint/saver.py": "the time of a save; a jump shifts which checkpoints stay for good, never the newest ones",
    "cli/_log_upkeep.py": "a name, beside random digits",
    "clock.py": "the clock itself",
    "cluster/discovery/zookeeper.py": "nine weeks, and never a job with a live process",
    "data/kafka/fetching.py": "the date at which the user wants reading to stop",
    "data/sources/file_patterns.py": "the date of today",
    "deltalog/log.py": "the time of a base, for people: bases are ordered by the increments that they contain",
    "deltalog/part.py": "lag in seconds, at least 0; and the time of an increment; increments are ordered by number",
    "export/export_folder.py": "whether a folder has changed; the times are compared for equality",
    "export/serving_rows.py": "the time of a file, for people",
    "export/writer.py": "the number of a version, above all that are there",
    "hooks/marker_files.py": "the hour of the day that the user has chosen",
    "hooks/throughput.py": "a metric, at least 0",
    "hooks/timer.py": "the hours of the day that the user has chosen",
    "observe/heart_beat.py": "a metric",
    "observe/summaries/summary_writer.py": "the time of an event of TensorBoard",
    "deltalog/follow/follower.py": "staleness, at least 0: what followers apply is ordered by number",
    "online/joiner/partition.py": "how far events may be ahead, from the time of events on; and lag",
    "online/joiner/files.py": "how soon a file is looked at again, from 0 to a limit",
    "online/stream/dataset.py": "lag; with max_lag_seconds, which examples are too old",
    "serving/request_log/log.py": "the time of a request",
    "serving/request_log/sinks.py": "a name, beside a number",
    "tables/local/store.py": "the time of a pushed row, at most a day ahead of all others",
    "tables/snapshot/save.py": "the time of a file, for people",
    "train/roles/worker.py": "a metric, at least 0",
}
"""Who reads a clock that may be set, and why a jump of a day does no harm. Leases and timeouts are not among them."""


def test_nothing_else_reads_a_clock_that_jumps(project_root: Path) -> None:
    rooms = [project_root / "src" / "monolith", project_root / "core", project_root / "bindings"]
    sources = [path for room in rooms for path in room.rglob("*.*") if path.suffix in {".cc", ".h", ".py"}]
    assert len(sources) > 500
    found = {
        path.relative_to(next(room for room in rooms if path.is_relative_to(room))).as_posix()
        for path in sources
        if "testing" not in path.parts and WALL_CLOCK.search(path.read_text(encoding="utf-8"))
    }
    assert found == MAY_JUMP.keys()
