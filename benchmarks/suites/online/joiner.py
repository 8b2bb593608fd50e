"""Events per second of the joiner, from the bytes of its inputs to those of its output, every step on disk."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli.joiner import COLLECTED_EVERY
from monolith.data.clicks import CountedDraws
from monolith.data.protos.example_pb2 import Example
from monolith.online.joiner import Joiner, JoinerConfig, JoinRuleConfig, action_record, impression_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monolith.cli._bench.setting import Setting

_LEAST_RATIO = 2.0
_LEAST_ON_DISK = 10_000.0
_BYTEWAX_PROGRAM = Path(__file__).resolve().parent / "bytewax_join.py"
_LARGE, _SMALL = 1 << 30, 1 << 20
"""Memory for what waits: for all of it, for a tenth."""
_WINDOW_SECONDS = 10.0
_PER_SECOND = 1000
_CLICKED = 0.3
_ITEMS_PER_REQUEST = 10
_START_MS = 1_700_000_000_000
_FEATURES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Traffic:
    """Files of records, and how many events they hold."""

    impressions: Path
    actions: Path
    num_impressions: int
    num_events: int


def measure(setting: Setting) -> list[Measurement]:
    """Measures with the complete window in memory, against Bytewax if installed, and with most of it on disk."""
    in_memory, on_disk, peer = list[float](), list[float](), list[float]()
    has_peer = importlib.util.find_spec("bytewax") is not None
    with tempfile.TemporaryDirectory(dir=setting.directory) as folder, _collector_of_the_command():
        traffic = _write_traffic(Path(folder) / "events", setting.large_rows // 200)
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
            note=f"{spread(in_memory)}; " + (f"Bytewax {spread(peer)}" if has_peer else "needs: pip install bytewax"),
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


def _joined(traffic: _Traffic, folder: Path, *, memory_bytes: int) -> float:
    joiner = Joiner(
        JoinerConfig(
            impressions=str(traffic.impressions),
            actions=str(traffic.actions),
            output=str(folder / "examples"),
            state_dir=str(folder / "state"),
            partitions=1,
            memory_bytes=memory_bytes,
            rules=JoinRuleConfig(window_seconds=_WINDOW_SECONDS, disorder_seconds=1.0),
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


def _bytewax(traffic: _Traffic, folder: Path) -> float:
    folder.mkdir()
    for each in (traffic.impressions, traffic.actions):
        (folder / each.name).symlink_to(each)
    command = [sys.executable, str(_BYTEWAX_PROGRAM), str(folder)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    return traffic.num_events / float(told.stdout)


def _write_traffic(folder: Path, num_impressions: int) -> _Traffic:
    """Returns a thousand items a second, three of ten of which are clicked within the window."""
    draws, numbers = CountedDraws(0), np.arange(num_impressions)
    clicked = (draws.uniform(0, numbers) < _CLICKED).tolist()
    delays_ms = (draws.uniform(1, numbers) * _WINDOW_SECONDS * 1000).astype(int).tolist()
    impressions, actions = [], []
    for number in range(num_impressions):
        request = b"request-%012d" % (number // _ITEMS_PER_REQUEST)
        time_ms = _START_MS + number * 1000 // _PER_SECOND
        impressions.append(impression_record(request, number, time_ms=time_ms, sample=_sample(number)))
        if clicked[number]:
            done_ms = time_ms + delays_ms[number]
            actions.append((done_ms, action_record(request, number, time_ms=done_ms, actions=[1])))
    folder.mkdir(parents=True, exist_ok=True)
    made = _Traffic(folder / "impressions", folder / "actions", num_impressions, num_impressions + len(actions))
    made.impressions.write_bytes(_framed(impressions))
    made.actions.write_bytes(_framed(record for _, record in sorted(actions)))
    return made


def _sample(number: int) -> bytes:
    example = Example()
    for slot in range(_FEATURES):
        feature = example.named_feature.add(name=f"feature_{slot}").feature
        feature.fid_v2_list.value.append(((slot + 1) << 48) + number * 31 + slot)
    return example.SerializeToString()


def _framed(records: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(record)) + record for record in records)
