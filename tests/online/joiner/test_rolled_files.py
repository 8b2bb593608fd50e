"""Inputs of many files that come and go: every event once, in the order of time, however reading is interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.data.records.bad_records import BadRecords
from monolith.data.records.framing import Framing
from monolith.errors import InvalidArgumentError
from monolith.online.joiner import Joiner, JoinerConfig, action_record, impression_record
from monolith.online.joiner.events import decode_event
from monolith.online.joiner.files import FileInput, RolledInput
from monolith.testing import FakeClock
from online.joiner.joins import CLICK, RULES, START_MS, append, framed, sample


def _input(folder: Path, clock: FakeClock | None = None, bad: int = 0) -> RolledInput:
    return RolledInput(str(folder / "*.requests"), Framing.PLAIN, BadRecords(bad), clock)


def _shown(number: int, time_ms: int) -> bytes:
    return impression_record(b"r%d" % number, number, time_ms=time_ms, sample=sample(number))


def _times(records: object) -> list[int]:
    return [decode_event(each).time_ms for each in records]  # type: ignore[attr-defined]


def _drain(source: RolledInput, limit: int = 7) -> list[bytes]:
    found: list[bytes] = []
    while (came := source.read(limit)).records:
        found += came.records
    return found


def test_a_backlog_of_several_servers_comes_in_the_order_of_time(tmp_path: Path) -> None:
    for server in range(3):
        append(
            tmp_path / f"{server}.requests",
            [_shown(each, START_MS + each) for each in range(server, 3000, 3)],
        )
    source = _input(tmp_path)
    source.open(None)
    assert _times(_drain(source, 1000)) == [START_MS + each for each in range(3000)]
    assert source.is_at_end()
    source.close()


@pytest.mark.parametrize("seed", range(5))
def test_every_event_is_read_once_however_often_reading_restarts(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    position, written = None, 0
    found: list[bytes] = []
    for _ in range(40):
        for _ in range(int(random.integers(4))):
            number = int(random.integers(4))
            append(tmp_path / f"{number}.requests", [_shown(written, START_MS + written)])
            written += 1
        source = _input(tmp_path)
        source.open(position)
        for _ in range(int(random.integers(3))):
            came = source.read(int(random.integers(1, 4)))
            found += came.records
            position = json.loads(json.dumps(came.following))
        source.close()
    source = _input(tmp_path)
    source.open(position)
    found += _drain(source)
    source.close()
    assert sorted(_times(found)) == [START_MS + each for each in range(written)]


def test_files_come_grow_end_torn_and_go(tmp_path: Path) -> None:
    clock = FakeClock()
    source = _input(tmp_path, clock)
    source.open(None)
    assert source.read(10).records == []
    assert source.is_at_end()
    whole = framed([_shown(1, START_MS)])
    (tmp_path / "a.requests").write_bytes(whole[:-3])
    (tmp_path / "other").write_bytes(whole)
    clock.advance(1.0)
    assert source.read(10).records == []
    (tmp_path / "a.requests").write_bytes(whole + framed([_shown(2, START_MS + 1)])[:5])
    append(tmp_path / "b.requests", [_shown(3, START_MS - 1)])
    clock.advance(1.0)
    came = source.read(10)
    assert _times(came.records) == [START_MS - 1, START_MS]
    (tmp_path / "b.requests").unlink()
    clock.advance(1.0)
    came = source.read(10)
    assert came.following == {"a.requests": [len(whole), 0]}
    source.close()


def test_a_file_that_is_idle_for_long_is_polled_every_second(tmp_path: Path) -> None:
    clock = FakeClock()
    source = _input(tmp_path, clock)
    file = tmp_path / "a.requests"
    append(file, [_shown(1, START_MS)])
    os.utime(file, (clock.now() - 3600, clock.now() - 3600))
    source.open(None)
    assert _times(_drain(source)) == [START_MS]
    append(file, [_shown(2, START_MS + 1)])
    clock.advance(0.9)
    assert source.read(10).records == []
    clock.advance(0.2)
    assert _times(source.read(10).records) == [START_MS + 1]
    source.close()


def test_bad_records_keep_their_place_and_the_file_is_named(tmp_path: Path) -> None:
    append(tmp_path / "a.requests", [b"\xff", _shown(1, START_MS), b"\xff\xff"])
    source = _input(tmp_path)
    source.open(None)
    came = source.read(10)
    assert [len(each) for each in came.records[::2]] == [1, 2]
    assert came.places[0] == "8 of a.requests"
    source.close()


def test_the_position_of_one_file_is_not_taken_for_that_of_many(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="state is that of one file"):
        _input(tmp_path).open(7)
    with pytest.raises(InvalidArgumentError, match=r"state is that of several files, a\.requests"):
        FileInput(str(tmp_path / "a"), Framing.PLAIN, BadRecords()).open({"a.requests": [0, 0]})


def test_a_joiner_resumes_with_rolled_files(tmp_path: Path) -> None:
    config = JoinerConfig(
        impressions=str(tmp_path / "*.requests"),
        actions=str(tmp_path / "done"),
        output=str(tmp_path / "examples"),
        state_dir=str(tmp_path / "state"),
        rules=RULES,
        partitions=1,
        stop_at_end=True,
    )
    append(tmp_path / "a.requests", [_shown(1, START_MS), _shown(2, START_MS + 1)])
    append(tmp_path / "done", [action_record(b"r1", 1, time_ms=START_MS + 9, actions=[CLICK])])
    first = Joiner(config)
    first.run()
    assert (first.counts.positives, first.counts.negatives) == (1, 1)
    later = START_MS + 100_000
    append(tmp_path / "b.requests", [_shown(3, later)])
    append(tmp_path / "a.requests", [_shown(4, later + 1)])
    second = Joiner(config)
    second.run()
    assert (second.counts.positives, second.counts.negatives, second.counts.impressions) == (1, 3, 4)


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ({"output": "out-*"}, "output must be one place, got the pattern 'out-\\*'"),
        ({"impressions": "*/shown"}, "impressions may have a '\\*' in its last part only"),
    ],
)
def test_patterns_that_cannot_work_are_refused(places: dict[str, str], sentence: str) -> None:
    given: dict[str, Any] = {"impressions": "i", "actions": "a", "output": "o", **places}
    with pytest.raises(ValueError, match=sentence):
        JoinerConfig(state_dir="s", partitions=1, **given)
