"""Events per second of the joiner, from the bytes of its inputs to those of its output, every step on disk."""

from __future__ import annotations

import gc
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.cli._bench.join_traffic import WINDOW_SECONDS, JoinTraffic, write_traffic
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli.joiner import COLLECTED_EVERY
from monolith.online.joiner import Joiner, JoinerConfig, JoinRules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.cli._bench.setting import Setting

_LEAST_RATIO = 2.0
_LEAST_ON_DISK = 10_000.0
_BYTEWAX_PROGRAM = Path(__file__).resolve().parents[5] / "benchmarks" / "bytewax_join.py"
"""Of a checkout; it imports Bytewax, so that it cannot be a module of the package."""
_WITHOUT_BYTEWAX = "needs: pip install bytewax, and a checkout"
_LARGE, _SMALL = 1 << 30, 1 << 20
"""Memory for what waits: for all of it, for a tenth."""


def measure(setting: Setting) -> list[Measurement]:
    """Measures with the complete window in memory, against Bytewax if installed, and with most of it on disk."""
    in_memory, on_disk, peer = list[float](), list[float](), list[float]()
    has_peer = importlib.util.find_spec("bytewax") is not None and _BYTEWAX_PROGRAM.is_file()
    with tempfile.TemporaryDirectory(dir=setting.directory) as folder, _collector_of_the_command():
        traffic = write_traffic(Path(folder) / "events", setting.large_rows // 200)
        for number in range(setting.rounds):
            work = Path(folder) / str(number)
            if has_peer:
                peer.append(_bytewax(traffic, work))
            in_memory.append(_joined(traffic, work / "large", memory_bytes=_LARGE))
            on_disk.append(_joined(traffic, work / "small", memory_bytes=_SMALL))
    unit = "events/s of processor time"
    return [
        Measurement(
            row="online_joiner",
            measure=f"joining {traffic.num_events:,} events, the window in memory",
            figure=statistics.median(in_memory),
            unit=unit,
            peer="Bytewax" if has_peer else "",
            peer_figure=statistics.median(peer) if has_peer else None,
            ratio=median_ratio(in_memory, peer) if has_peer else None,
            limit=_LEAST_RATIO if has_peer else None,
            note=f"{spread(in_memory)}; "
            + (f"Bytewax {spread(peer)}" if has_peer else "needs: pip install bytewax, and a checkout"),
        ),
        Measurement(
            row="online_joiner",
            measure="the same, nine tenths of the window on disk",
            figure=statistics.median(on_disk),
            unit=unit,
            limit=_LEAST_ON_DISK,
            note=spread(on_disk),
        ),
    ]


@contextmanager
def _collector_of_the_command() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _joined(traffic: JoinTraffic, folder: Path, *, memory_bytes: int) -> float:
    joiner = Joiner(
        JoinerConfig(
            impressions=str(traffic.impressions),
            actions=str(traffic.actions),
            output=str(folder / "examples"),
            state_dir=str(folder / "state"),
            partitions=1,
            memory_bytes=memory_bytes,
            rules=JoinRules(window_seconds=WINDOW_SECONDS, disorder_seconds=1.0),
            stop_at_end=True,
        )
    )
    begun = time.process_time()
    joiner.run()
    seconds = time.process_time() - begun
    counts = joiner.counts
    if counts.positives + counts.negatives != traffic.num_impressions:
        raise RuntimeError(f"the joiner made {counts}, expected {traffic.num_impressions} examples")
    return traffic.num_events / seconds


def _bytewax(traffic: JoinTraffic, folder: Path) -> float:
    folder.mkdir()
    for each in (traffic.impressions, traffic.actions):
        (folder / each.name).symlink_to(each)
    command = [sys.executable, str(_BYTEWAX_PROGRAM), str(folder)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own program
    return traffic.num_events / float(told.stdout)
