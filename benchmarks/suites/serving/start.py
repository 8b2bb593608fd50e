"""A server that starts with many rows against the restore of its snapshot, and the memory of its rows."""

from __future__ import annotations

import statistics
import time
import urllib.request
from typing import TYPE_CHECKING

from benchmarks.suites.serving.served_deepfm import exported, filled_session
from monolith.cli._bench import machine, ours
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread, tell
from monolith.cli._bench.timing import timed
from monolith.export.opened import open_export
from monolith.serving import Predictor
from monolith.serving.server import ModelRegistry, ModelServer

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.cli._bench.setting import Setting

START_LIMIT, MEMORY_LIMIT = 1.3, 0.4
_ROUNDS = 5


def measure(setting: Setting) -> list[Measurement]:
    """From the call that opens an export to ``/readyz``; imports are not in it. Files are not in the page cache."""
    ours.use_threads(setting.threads)
    starts, restores = list[float](), list[float]()
    with machine.scratch_folder(setting.directory, needed_bytes=setting.large_rows * 100) as folder:
        with filled_session(setting.large_rows) as session:
            (store,) = session.state.stores.values()
            trained = store.stats()
            path = exported(session, folder / "export")
        for number in range(min(_ROUNDS, setting.rounds)):
            tell(f"    start {number + 1} of {min(_ROUNDS, setting.rounds)}")
            restores.append(_restore_seconds(path, folder))
            seconds, served_bytes = _start(path, folder)
            starts.append(seconds)
    return [
        Measurement(
            row="serving_start",
            measure=f"ready after a start with {trained.rows:,} rows",
            figure=statistics.median(starts),
            unit="s",
            peer="restore of the snapshot",
            peer_figure=statistics.median(restores),
            ratio=median_ratio(starts, restores),
            limit=START_LIMIT,
            sense=Sense.AT_MOST,
            note=f"without imports, cold files; {spread(starts)}",
        ),
        Measurement(
            row="serving_start",
            measure=f"memory of {trained.rows:,} serving rows of fp16",
            figure=served_bytes / 2**20,
            unit="MiB",
            peer="training rows",
            peer_figure=trained.memory_bytes / 2**20,
            ratio=served_bytes / trained.memory_bytes,
            limit=MEMORY_LIMIT,
            sense=Sense.AT_MOST,
            note="by the tables' own count",
        ),
    ]


def _restore_seconds(path: str, folder: Path) -> float:
    machine.forget_pages(machine.files_under(folder))
    opened = open_export(path)
    stores = opened.new_stores()
    return timed(opened.load_rows, stores)


def _start(path: str, folder: Path) -> tuple[float, int]:
    """Seconds until it is ready, and bytes of its rows."""
    machine.forget_pages(machine.files_under(folder))
    begin = time.perf_counter()
    predictor, registry = Predictor(path), ModelRegistry()
    registry.add("ranker", predictor)
    with ModelServer(registry) as server:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz").close()
        seconds = time.perf_counter() - begin
        num_bytes = predictor.memory_bytes
    registry.close()
    return seconds, num_bytes
