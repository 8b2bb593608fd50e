"""Impressions and actions for the joiner and for its peer: the same files."""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

import numpy as np

from monolith.data.counted_draws import CountedDraws
from monolith.data.protos.example_pb2 import Example
from monolith.online.joiner import action_record, impression_record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WINDOW_SECONDS = 10.0
_PER_SECOND = 1000
_CLICKED = 0.3
_ITEMS_PER_REQUEST = 10
_START_MS = 1_700_000_000_000
_FEATURES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class JoinTraffic:
    """Files of records, and how many events they hold."""

    impressions: Path
    actions: Path
    num_impressions: int
    num_events: int


def write_traffic(folder: Path, num_impressions: int) -> JoinTraffic:
    """Returns a thousand items a second, three of ten of which are clicked within the window."""
    draws, numbers = CountedDraws(0), np.arange(num_impressions)
    clicked = (draws.uniform(0, numbers) < _CLICKED).tolist()
    delays_ms = (draws.uniform(1, numbers) * WINDOW_SECONDS * 1000).astype(int).tolist()
    impressions, actions = [], []
    for number in range(num_impressions):
        request = b"request-%012d" % (number // _ITEMS_PER_REQUEST)
        time_ms = _START_MS + number * 1000 // _PER_SECOND
        impressions.append(impression_record(request, number, time_ms=time_ms, sample=_sample(number)))
        if clicked[number]:
            done_ms = time_ms + delays_ms[number]
            actions.append((done_ms, action_record(request, number, time_ms=done_ms, actions=[1])))
    folder.mkdir(parents=True, exist_ok=True)
    made = JoinTraffic(folder / "impressions", folder / "actions", num_impressions, num_impressions + len(actions))
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
