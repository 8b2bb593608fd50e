"""One partition: every event counts once, whatever happens between two of its steps."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.framed_files import framed as framed_as
from monolith.data.protos.example_pb2 import Example
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.framing import Framing
from monolith.data.records.reader import read_examples
from monolith.errors import DataLossError, FailedPreconditionError, ResourceExhaustedError
from monolith.online.joiner import partition as partition_module
from monolith.online.joiner import state as state_module
from monolith.online.joiner.events import action_record, impression_record
from monolith.online.joiner.examples import NumberedExample, pack_examples, split_examples
from monolith.online.joiner.files import FileInput, FileOutput
from monolith.online.joiner.machine import JoinMachine
from monolith.online.joiner.rules import JoinRuleConfig
from monolith.online.joiner.state import PartitionState
from online.joiner.joins import CLICK, RULES, START_MS, FolderJoin, append, framed, outcome, sample, traffic


def test_files_are_joined_into_numbered_examples_that_any_reader_takes(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, expected = traffic(300)
    append(join.impressions, impressions)
    append(join.actions, actions)
    counts = join.run().counts
    examples = join.examples()
    assert [each.number for each in examples] == list(range(1, 301))
    assert outcome(examples) == expected
    assert (counts.positives, counts.negatives) == (len(actions), 300 - len(actions))
    plain = [Example.FromString(record) for record in read_examples(join.output, "sort_id")]
    assert [each.SerializeToString() for each in plain] == [
        Example.FromString(each.example).SerializeToString() for each in examples
    ]
    first = examples[0]
    assert first.request.startswith(b"request-")
    assert START_MS <= first.known_ms <= START_MS + 4000


def test_a_file_may_grow_and_its_torn_end_is_waited_for(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, expected = traffic(120)
    partition = join.partition()
    partition.open()
    assert partition.step() == 0
    data = framed(impressions)
    for begin in range(0, len(data), 1000):
        with join.impressions.open("ab") as file:
            file.write(data[begin : begin + 1000])
        while partition.step():
            pass
    append(join.actions, actions)
    while partition.step():
        pass
    assert partition.counts.impressions == 120
    partition.drain()
    partition.close()
    assert outcome(join.examples()) == expected


class Stop(BaseException):
    """As sudden as a kill: nobody handles it."""


def _dying(count: int, function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """The function, which dies in its call number `count`, before or behind what it does."""
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and before:
            raise Stop
        answer = function(*args)
        if calls == count:
            raise Stop
        return answer

    return call


def _torn_append(self: FileOutput, packed: bytes) -> int:
    os.pwrite(self._opened(), packed[: len(packed) // 2], self._end)
    raise Stop


DEATHS: dict[str, tuple[Any, str, Any]] = {
    "after reading": (JoinMachine, "take", True),
    "before the commit": (PartitionState, "commit", True),
    "behind the commit": (PartitionState, "commit", False),
    "behind sending": (FileOutput, "append", False),
    "while sending": (FileOutput, "append", _torn_append),
}


@pytest.mark.parametrize("death", DEATHS)
def test_every_event_counts_once_wherever_it_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str) -> None:
    owner, name, how = DEATHS[death]
    join = FolderJoin(tmp_path, batch_records=20)
    impressions, actions, expected = traffic(200)
    append(join.impressions, impressions)
    append(join.actions, actions)
    original = getattr(owner, name)
    deaths = 0
    for count in (1, 2, 3, 4):
        dying = how if callable(how) else _dying(count, original, before=how)
        monkeypatch.setattr(owner, name, lambda self, *args, dying=dying: dying(self, *args))
        try:
            join.run()
        except Stop:
            deaths += 1
        monkeypatch.setattr(owner, name, original)
    join.run()
    assert deaths == 4
    assert [each.number for each in join.examples()] == list(range(1, 201))
    assert outcome(join.examples()) == expected


def test_a_window_larger_than_memory_goes_to_disk_and_comes_out_the_same(tmp_path: Path) -> None:
    rules = JoinRuleConfig(window_seconds=1.0, disorder_seconds=0.05, late_actions="correct", negative_action=75)
    impressions, actions, _ = traffic(300)
    late = [action_record(b"request-%d" % 290, 290, time_ms=START_MS + 2900, actions=[7])]
    found = {}
    for memory_bytes in (1 << 30, 20_000):
        folder = tmp_path / str(memory_bytes)
        folder.mkdir()
        join = FolderJoin(folder, rules, memory_bytes=memory_bytes, batch_records=40)
        append(join.impressions, impressions)
        append(join.actions, actions)
        partition = join.partition()
        partition.open()
        spilled = 0
        while partition.step() or not partition.is_at_end():
            assert partition.machine.num_bytes <= memory_bytes
            spilled = max(spilled, partition._state.head.num_spilled)
        append(join.actions, late)
        partition.close()
        join.run()
        assert (spilled > 100) == (memory_bytes == 20_000)
        found[memory_bytes] = join.examples()
    small, large = found.values()
    assert sorted(each.example for each in small) == sorted(each.example for each in large)
    firsts = [each for each in small if not Example.FromString(each.example).line_id.pre_actions]
    assert len(firsts) == 300
    assert any(7 in Example.FromString(each.example).line_id.actions for each in small)


def test_a_clock_that_jumps_by_days_closes_no_window_and_drops_no_event(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, expected = traffic(300)
    today = join.clock.now()
    partition = join.partition()
    partition.open()
    for number, days in enumerate((0, 1, -1, 400, -400, 0)):
        join.clock.jump_to(today + 86_400 * days)
        partition.step()  # both inputs are silent for a moment
        append(join.impressions, impressions[50 * number :][:50])
        append(join.actions, actions[15 * number :][:15] if number < 5 else actions[75:])
        while partition.step() or not partition.is_at_end():
            pass
    partition.drain()
    partition.close()
    counts = partition.counts
    assert (counts.ahead, counts.late_impressions, counts.late_actions) == (0, 0, 0)
    assert outcome(join.examples()) == expected


def test_a_window_on_disk_is_closed_in_pieces_also_after_a_kill_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "_MOST_EXAMPLES", 100)
    monkeypatch.setattr(state_module, "_AT_ONCE", 40)
    join = FolderJoin(tmp_path, JoinRuleConfig(window_seconds=1000.0), memory_bytes=20_000)
    impressions, actions, expected = traffic(1000)
    append(join.impressions, impressions)
    append(join.actions, actions)
    join.run(drain=False)
    before = len(join.examples())
    partition = join.partition()
    partition.open()
    sent: list[int] = []
    send = partition._output.append

    def send_twice(packed: bytes) -> int:
        if len(sent) == 2:
            raise ConnectionError("killed")
        sent.append(len(list(split_examples(packed))))
        return send(packed)

    monkeypatch.setattr(partition._output, "append", send_twice)
    with pytest.raises(ConnectionError):
        partition.drain()
    in_memory = len(partition.machine.entries)
    partition.close()
    assert 0 < max(sent) < 300, "not the entire window at once"
    assert in_memory < 300
    again = join.partition()
    again.open()
    assert again.num_waiting == 1000, "in memory or on disk, once"
    again.close()
    numbers = [each.number for each in join.examples()]
    assert numbers == list(range(1, 1001)), "what was due is closed before anything else is read"
    assert before < 500
    assert outcome(join.examples()) == expected


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1 << 16])
def test_a_window_larger_than_memory_and_disk_is_named_and_nothing_is_lost(tmp_path: Path, memory_bytes: int) -> None:
    join = FolderJoin(tmp_path, max_bytes=120_000, memory_bytes=memory_bytes)
    impressions, actions, expected = traffic(1200)
    append(join.impressions, impressions)
    for _ in range(2):  # starting it again changes nothing
        with pytest.raises(ResourceExhaustedError, match="the window does not fit: make room, raise max_state_bytes"):
            join.run()
    append(join.actions, actions)
    join.max_bytes = None
    counts = join.run().counts
    assert (counts.impressions, counts.duplicate_impressions) == (1200, 0)
    assert outcome(join.examples()) == expected


def test_a_full_disk_under_the_output_is_named_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, expected = traffic(200)
    append(join.impressions, impressions)
    append(join.actions, actions)
    write, left = os.pwrite, [3000]

    def write_what_fits(descriptor: int, data: memoryview, offset: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: left[0]], offset)
        left[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", write_what_fits)
    with pytest.raises(ResourceExhaustedError, match="examples"):
        join.run()
    assert join.output.stat().st_size == 3000
    with pytest.raises(ResourceExhaustedError, match="examples"):
        join.run()
    left[0] = 1 << 30
    join.run()
    assert [each.number for each in join.examples()] == list(range(1, 201))
    assert outcome(join.examples()) == expected


def test_events_out_of_any_order_are_joined_or_counted(tmp_path: Path) -> None:
    week_ms = 7 * 86_400_000
    join = FolderJoin(tmp_path)
    join.clock.advance(2 * week_ms / 1000)
    impressions, _, _ = traffic(3)
    behind = impression_record(b"behind", 9, time_ms=START_MS + week_ms, sample=sample(9))
    append(join.impressions, [*impressions, behind])
    append(
        join.actions,
        [
            action_record(b"request-1", 1, time_ms=START_MS - 500, actions=[CLICK]),  # before its impression
            action_record(b"nobody", 5, time_ms=START_MS + 10, actions=[CLICK]),  # without one
            action_record(b"behind", 9, time_ms=START_MS + week_ms, actions=[CLICK]),
        ],
    )
    partition = join.partition()
    partition.open()
    while partition.step() or not partition.is_at_end():
        pass
    assert partition.counts.negatives == 2
    late = [action_record(b"request-2", 2, time_ms=START_MS + 30, actions=[CLICK])]
    late.append(action_record(b"request-0", 0, time_ms=START_MS + week_ms, actions=[CLICK]))
    append(join.actions, late)  # a week late, and a week behind its impression
    append(join.impressions, [impression_record(b"old", 7, time_ms=START_MS, sample=sample(7))])
    while partition.step() or not partition.is_at_end():
        pass
    partition.drain()
    partition.close()
    counts = partition.counts
    assert (counts.positives, counts.negatives, counts.unmatched_actions, counts.late_impressions) == (2, 2, 3, 1)
    assert outcome(join.examples()) == {(0, 0.0): 1, (1, 1.0): 1, (2, 0.0): 1, (9, 1.0): 1}


@pytest.mark.parametrize("late_actions", ["drop", "count"])
def test_counts_depend_neither_on_restarts_nor_on_the_size_of_a_step(tmp_path: Path, late_actions: str) -> None:
    impressions, _, _ = traffic(300)
    actions = []
    for number in range(0, 90, 3):  # in order: within the window, behind it, and behind what is kept for late ones
        at = START_MS + 10 * number
        times = (at + 40, at + 700, at + 1001 + 17 * (number % 50), at + 2001 + number % 50)
        request = b"request-%d" % number
        actions += [(each, action_record(request, number, time_ms=each, actions=[CLICK])) for each in times]
    found = []
    for batch_records, restarts in ((20, False), (20, True), (5000, False)):
        folder = tmp_path / f"{batch_records}-{restarts}"
        folder.mkdir()
        join = FolderJoin(folder, replace(RULES, late_actions=late_actions), batch_records=batch_records)
        append(join.impressions, impressions)
        append(join.actions, [record for _, record in sorted(actions)])
        partition = join.partition()
        partition.open()
        while partition.step() or not partition.is_at_end():
            if restarts:
                partition.close()
                partition = join.partition()
                partition.open()
                partition.step()
        partition.drain()
        partition.close()
        found.append((partition.counts.to_dict(), outcome(join.examples())))
    assert found[0] == found[1] == found[2]
    assert found[0][0]["unmatched_actions"] == {"drop": 60, "count": 30}[late_actions]


def test_bad_records_are_rejected_or_skipped_and_counted(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, expected = traffic(20)
    poisoned = impression_record(b"p", 1, time_ms=START_MS, sample=sample(1)[:-1])
    append(join.impressions, [*impressions[:10], b"\xff\xff\xff", poisoned, *impressions[10:]])
    append(join.actions, actions)
    with pytest.raises(DataLossError, match=r"impressions': offset \d+: 3 bytes that are no JoinEvent"):
        join.run()
    join.bad_limit = 1
    with pytest.raises(DataLossError, match=r"offset \d+: the sample: .*2 bad records, limit is 1"):
        join.run()
    join.bad_limit = 2
    assert join.run().counts.bad == 2
    assert outcome(join.examples()) == expected


def test_every_unreadable_sample_of_a_read_is_counted(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, expected = traffic(20)
    poisoned = [impression_record(b"p%d" % i, i, time_ms=START_MS, sample=sample(i)[:-1]) for i in range(1, 26)]
    append(join.impressions, [*impressions[:10], *poisoned, *impressions[10:]])
    append(join.actions, actions)
    join.bad_limit = 24
    with pytest.raises(
        DataLossError, match=r"offset \d+ on: 9 more unreadable samples \(25 bad records, limit is 24\)"
    ):
        join.run()
    join.bad_limit = 25
    assert join.run().counts.bad == 25
    assert outcome(join.examples()) == expected


def test_a_bad_record_is_not_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "records"
    good, bad = (bytearray(framed_as(Framing.TFRECORD, [payload])) for payload in (b"good", b"bad"))
    bad[-5] ^= 1
    path.write_bytes(good)
    with closing(FileInput(str(path), Framing.TFRECORD, BadRecords(1))) as source:
        source.open(None)
        assert source.read(10).records == [b"good"]
        assert source.read(10).records == []
        assert source.is_at_end()
        path.write_bytes(good + bad + good)
        assert source.read(10).records == ()
        assert not source.is_at_end()
        assert source.read(10).records == [b"good"]


def test_an_output_must_be_open(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="is not open; call open first"):
        FileOutput(str(tmp_path / "examples")).append(b"")


def test_events_from_the_future_close_no_window(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, expected = traffic(20)
    future = round(join.clock.now() * 1000) + 3_700_000
    ahead = [impression_record(b"f", 1, time_ms=future, sample=sample(1))]
    append(join.impressions, [*impressions[:10], *ahead, *impressions[10:]])
    append(join.actions, [*actions, action_record(b"f", 1, time_ms=future, actions=[CLICK])])
    counts = join.run().counts
    assert (counts.ahead, counts.late_impressions) == (2, 0)
    assert outcome(join.examples()) == expected


def test_an_input_far_ahead_of_the_other_waits_for_it(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path, batch_records=10)
    impressions, actions, _ = traffic(1000)
    append(join.impressions, impressions)
    append(join.actions, actions)
    partition = join.partition()
    partition.open()
    most = 0
    while partition.step() or not partition.is_at_end():
        most = max(most, partition.num_waiting)
    partition.close()
    # Of ten seconds of events one window behind the close is known, one is open, and one is the lead.
    assert most < 500


def test_silence_closes_the_last_windows(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, _, _ = traffic(5)
    append(join.impressions, impressions)
    partition = join.partition()
    partition.open()
    while partition.step():
        pass
    join.clock.advance(RULES.idle_seconds)
    partition.step()
    assert partition.counts.negatives == 0
    join.clock.advance(1.2)
    partition.step()
    partition.close()
    assert partition.counts.negatives == 5


def test_silence_writes_nothing(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    append(join.impressions, traffic(5)[0])
    partition = join.partition()
    partition.open()
    while partition.step():
        pass
    before = partition._state._database.total_changes
    for _ in range(5):
        join.clock.advance(0.1)
        partition.step()
    assert partition._state._database.total_changes == before
    partition.close()


def test_a_foreign_state_or_output_is_refused_by_name(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    impressions, actions, _ = traffic(50)
    append(join.impressions, impressions)
    append(join.actions, actions)
    join.run()
    join.identity = {"mode": "fast_emit"}
    with pytest.raises(FailedPreconditionError, match="was created with mode 'wait', got 'fast_emit'"):
        join.partition()
    join.identity = {"mode": "wait"}
    whole = join.output.read_bytes()
    join.output.write_bytes(whole + pack_examples([NumberedExample(51, 1, b"r", b"")]))
    with pytest.raises(DataLossError, match=r"has example 51, but state .* ends at 50; another joiner wrote there"):
        join.run()
    join.output.write_bytes(whole[:100])
    with pytest.raises(DataLossError, match=rf"has 100 bytes, {len(whole)} were written"):
        join.run()
    join.output.write_bytes(whole)
    join.impressions.write_bytes(b"")
    with pytest.raises(DataLossError, match=r"ends before byte \d+, up to which it was read"):
        join.run()
    join.state.write_bytes(b"something else than SQLite's" * 1000)
    with pytest.raises(DataLossError, match=r"state .*file is not a database; restore the file"):
        join.run()


def test_packed_examples_are_checked() -> None:
    examples = [NumberedExample(1, 5, b"r", b"one"), NumberedExample(2, 6, b"", b"")]
    packed = pack_examples(examples)
    assert list(split_examples(packed)) == examples
    with pytest.raises(DataLossError, match="inside a record"):
        split_examples(packed[:-1])
    with pytest.raises(DataLossError, match="a sort id of 0 bytes"):
        split_examples(bytes(16))


def test_what_waits_long_does_not_keep_all_that_came_since_on_disk(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path, batch_records=2000)
    large = sample(1) + sample(2) * 50
    append(join.actions, [action_record(b"long", 1, time_ms=START_MS + 3_000_000, actions=[CLICK])])
    partition = join.partition()
    partition.open()
    largest = 0
    for second in range(30):
        time_ms = START_MS + 1000 * second
        records = [impression_record(b"%d" % second, each, time_ms=time_ms, sample=large) for each in range(200)]
        append(join.impressions, records)
        while partition.step():
            pass
        largest = max(largest, partition._state._log.num_bytes)
    kept = dict(partition.machine.entries)
    partition.close()
    assert partition.counts.negatives > 5000
    assert b"long" + bytes([1, *[0] * 7]) in kept
    assert largest < (3 << 20) < 30 * 200 * len(large)
    again = join.partition()
    again.open()
    assert again.machine.entries == kept
    again.close()


def test_a_state_is_loaded_as_it_was_left_after_any_step(tmp_path: Path) -> None:
    rules = JoinRuleConfig(window_seconds=1.0, disorder_seconds=0.05, late_actions="correct", negative_action=75)
    join = FolderJoin(tmp_path, rules, batch_records=15, memory_bytes=1 << 16)
    impressions, actions, _ = traffic(300)
    append(join.impressions, impressions)
    append(join.actions, actions)
    spilled = 0
    while True:
        partition = join.partition()
        partition.open()
        came = partition.step()
        kept, spilled = dict(partition.machine.entries), max(spilled, partition._state.head.num_spilled)
        at_end = not came and partition.is_at_end()
        partition.close()
        again = join.partition()
        again.open()
        assert again.machine.entries == kept
        again.close()
        if at_end:
            break
    assert spilled


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    join = FolderJoin(tmp_path)
    append(join.impressions, traffic(5)[0])
    join.run(drain=False)
    database = sqlite3.connect(join.state, isolation_level=None)
    database.execute("UPDATE steps SET entries = substr(entries, 1, length(entries) - 3)")
    database.close()
    with pytest.raises(DataLossError, match=r"state.sqlite': entries end at byte \d+.*restore the file"):
        join.run()
