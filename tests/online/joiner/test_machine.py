"""The decision of the joiner, against a plain join that has all events in a list."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.data.protos.example_pb2 import Example
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import DataLossError
from monolith.online.joiner.events import Event, action_record, decode_event, impression_record, key_of
from monolith.online.joiner.examples import ExampleWriter
from monolith.online.joiner.machine import (
    Entry,
    EntryStage,
    Held,
    JoinedExample,
    JoinMachine,
    pack_entries,
    unpack_entries,
)
from monolith.online.joiner.partition import Watermark
from monolith.online.joiner.rules import JoinRuleConfig

WINDOW = 100
SKIP = 75
CLICK, LIKE = 1, 2


def rules(**options: Any) -> JoinRuleConfig:
    return JoinRuleConfig(
        **{"window_seconds": WINDOW / 1000, "late_seconds": WINDOW / 1000, "negative_action": SKIP, **options}
    )


def shown(request: bytes, time_ms: int) -> Event:
    return Event(key_of(request, 7), time_ms, b"sample of " + request, ())


def done(request: bytes, time_ms: int, *actions: int) -> Event:
    return Event(key_of(request, 7), time_ms, b"", actions)


def outcome(each: JoinedExample) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    return each.key[:-8], each.actions, each.pre_actions


def run(machine: JoinMachine, *history: Event | int) -> list[tuple[bytes, tuple[int, ...], tuple[int, ...]]]:
    """What goes out for events and, as numbers, the time of events."""
    for each in history:
        if isinstance(each, int):
            machine.advance(each)
        else:
            machine.take([each])
    return [outcome(each) for each in machine.take_outgoing()]


def test_wait_gives_a_positive_with_its_action_and_a_negative_when_its_window_closes() -> None:
    machine = JoinMachine(rules())
    assert run(machine, shown(b"a", 1000), shown(b"b", 1000), 1050) == []
    assert run(machine, done(b"a", 1060, CLICK)) == [(b"a", (CLICK,), ())]
    assert run(machine, 1099) == []
    machine.advance(1100)
    (negative,) = machine.take_outgoing()
    assert negative == JoinedExample(key_of(b"b", 7), 1000, 1100, b"sample of b", (SKIP,), ())
    assert run(machine, 1200) == []
    assert (machine.entries, machine.num_bytes) == ({}, 0)


def test_fast_emit_emits_a_negative_immediately_and_corrections_that_name_the_emitted_labels() -> None:
    machine = JoinMachine(rules(mode="fast_emit"))
    assert run(machine, shown(b"a", 1000)) == [(b"a", (SKIP,), ())]
    assert run(machine, done(b"a", 1010, CLICK)) == [(b"a", (CLICK,), (SKIP,))]
    assert run(machine, done(b"a", 1020, LIKE)) == [(b"a", (CLICK, LIKE), (CLICK,))]
    assert run(machine, 1100, done(b"a", 1090, 3), 1200) == []
    assert machine.counts.late_actions == 1


def test_an_action_before_its_impression_waits_for_it() -> None:
    machine = JoinMachine(rules())
    assert run(machine, done(b"a", 1000, CLICK), done(b"a", 1001, LIKE), 1050) == []
    assert run(machine, shown(b"a", 990)) == [(b"a", (CLICK, LIKE), ())]
    fast = JoinMachine(rules(mode="fast_emit"))
    assert run(fast, done(b"a", 1000, CLICK), shown(b"a", 990)) == [(b"a", (CLICK,), ())]


def test_an_action_without_an_impression_is_counted_and_evicted() -> None:
    machine = JoinMachine(rules())
    assert run(machine, done(b"a", 1000, CLICK), 1100, done(b"b", 900, CLICK)) == []
    assert machine.counts.unmatched_actions == 2
    assert not machine.entries


@pytest.mark.parametrize(
    ("policy", "expected", "late", "kept"),
    [("drop", [], 0, []), ("count", [], 1, [False]), ("correct", [(b"a", (CLICK,), (SKIP,))], 1, [True])],
)
def test_late_actions_are_dropped_counted_or_correct_their_example(
    policy: str, expected: list[Any], late: int, kept: list[bool]
) -> None:
    options: dict[str, Any] = {} if policy == "drop" else {"late_seconds": 0.1}
    machine = JoinMachine(JoinRuleConfig(window_seconds=0.1, late_actions=policy, negative_action=SKIP, **options))
    assert run(machine, shown(b"a", 1000), 1150) == [(b"a", (SKIP,), ())]
    assert [bool(entry.sample) for entry in machine.entries.values()] == kept
    assert run(machine, done(b"a", 1090, CLICK)) == expected
    assert machine.counts.late_actions == late
    assert machine.counts.unmatched_actions == (0 if late else 0 if machine.entries else 1)
    assert run(machine, 5000) == []
    assert not machine.entries
    assert machine.counts.unmatched_actions == 1 - late


def test_an_action_after_the_window_does_not_make_a_positive_however_early_it_arrives() -> None:
    machine = JoinMachine(rules(late_actions="correct"))
    assert run(machine, shown(b"a", 1000), done(b"a", 1101, CLICK)) == []
    assert run(machine, 1100) == [(b"a", (SKIP,), ()), (b"a", (CLICK,), (SKIP,))]
    counting = JoinMachine(rules())
    assert run(counting, done(b"a", 1101, CLICK), shown(b"a", 1000), 1100) == [(b"a", (SKIP,), ())]
    assert counting.counts.late_actions == 1


def test_both_ends_of_the_window_belong_to_it() -> None:
    for at, counted in ((1100, [(b"a", (CLICK,), ())]), (1101, [])):
        assert run(JoinMachine(rules()), shown(b"a", 1000), done(b"a", at, CLICK)) == counted
        assert run(JoinMachine(rules()), done(b"a", at, CLICK), shown(b"a", 1000)) == counted
    for at, unmatched in ((900, 0), (899, 1)):
        behind, before = JoinMachine(rules()), JoinMachine(rules())
        run(behind, shown(b"a", 1000), done(b"a", at, CLICK))
        run(before, done(b"a", at, CLICK), shown(b"a", 1000))
        assert [each.counts.unmatched_actions for each in (behind, before)] == [unmatched] * 2
        assert [each.counts.positives for each in (behind, before)] == [1 - unmatched] * 2
    machine = JoinMachine(rules())
    run(machine, 1100, done(b"early", 1000, CLICK), done(b"held", 1001, CLICK), shown(b"late", 1000), shown(b"b", 1001))
    assert (machine.counts.unmatched_actions, machine.counts.late_impressions) == (1, 1)
    assert [each[:-8] for each in machine.entries] == [b"held", b"b"]


def test_duplicates_and_late_impressions_are_skipped_and_counted() -> None:
    machine = JoinMachine(rules())
    run(machine, shown(b"a", 1000), shown(b"a", 1000), done(b"a", 1010, CLICK), done(b"a", 1010, CLICK))
    run(machine, done(b"a", 1020, SKIP))
    assert (machine.counts.duplicate_impressions, machine.counts.duplicate_actions) == (1, 2)
    assert machine.counts.positives == 1
    # Known until no copy could be taken for a new one: behind that they are late.
    run(machine, 1100, shown(b"a", 1000), 1200, shown(b"a", 1000))
    assert (machine.counts.duplicate_impressions, machine.counts.late_impressions) == (2, 1)
    assert run(machine, 9000) == []


def test_negatives_are_drawn_by_key_and_every_example_carries_the_rate() -> None:
    chosen = rules(negative_rate=0.25, seed=3)
    requests = [b"r%d" % number for number in range(4000)]
    one = {key for key, *_ in run(JoinMachine(chosen), *(shown(each, 1000) for each in requests), 2000)}
    other = {key for key, *_ in run(JoinMachine(chosen), *(shown(each, 1500) for each in reversed(requests)), 2000)}
    assert one == other
    assert 900 < len(one) < 1100
    differently = rules(negative_rate=0.25, seed=4)
    assert one != {key for key, *_ in run(JoinMachine(differently), *(shown(each, 1000) for each in requests), 2000)}
    joined = JoinedExample(key_of(b"r", 7), 1000, 1010, b"", (CLICK,), ())
    example = Example.FromString(ExampleWriter(chosen).example(joined))
    assert example.line_id.sample_rate == 0.25


def test_a_negative_that_was_drawn_out_needs_no_correction() -> None:
    machine = JoinMachine(rules(mode="fast_emit", negative_rate=1e-12))
    assert run(machine, shown(b"a", 1000), done(b"a", 1001, CLICK)) == [(b"a", (CLICK,), ())]
    assert (machine.counts.sampled_out, machine.counts.positives, machine.counts.corrections) == (1, 1, 0)


@pytest.mark.parametrize("kind", [Example, Instance])
def test_an_example_is_its_sample_with_labels_and_what_happened(kind: Any) -> None:
    sample = kind(label=[0.5])
    sample.line_id.uid = 12
    sample.line_id.req_time = 1
    sample.line_id.actions.append(-3)
    writer = ExampleWriter(rules(tasks=((CLICK,), (LIKE, 3)), negative_label=-1.0), kind.__name__)
    joined = JoinedExample(
        key_of(b"r", 2**63 + 5), 1_700_000_000_999, 0, sample.SerializeToString(), (LIKE, -7), (SKIP,)
    )
    found = kind.FromString(writer.example(joined))
    assert list(found.label) == [0.5, -1.0, 1.0]
    line = found.line_id
    assert (line.uid, line.req_time, line.item_id) == (12, 1_700_000_000, 2**63 + 5)
    assert (list(line.actions), list(line.pre_actions), line.sample_rate) == ([-3, LIKE, -7], [SKIP], 1.0)


def test_samples_that_cannot_be_completed_are_refused() -> None:
    with pytest.raises(ValueError, match="EXAMPLE or INSTANCE, got EXAMPLE_BATCH"):
        ExampleWriter(rules(), "example_batch")


def test_events_survive_a_record_round_trip_and_bad_ones_report_what_is_missing() -> None:
    assert decode_event(impression_record(b"r", 9, time_ms=5, sample=b"s")) == Event(key_of(b"r", 9), 5, b"s", ())
    assert decode_event(action_record(b"r", 9, time_ms=5, actions=[1, -2])).actions == (1, -2)
    for record, text in [
        (b"\xff\xff", "no JoinEvent"),
        (action_record(b"", 9, time_ms=5, actions=[1]), "without request_id"),
        (action_record(b"r", 9, time_ms=0, actions=[1]), "time_ms 0"),
        (action_record(b"r", 9, time_ms=5, actions=[]), "neither sample nor actions"),
    ]:
        with pytest.raises(DataLossError, match=text):
            decode_event(record)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "later"}, "mode must be one of"),
        ({"negative_rate": 0.0}, "above 0"),
        ({"mode": "fast_emit", "negative_action": None}, "needs negative_action"),
        ({"late_actions": "correct", "negative_action": None}, "needs negative_action"),
        ({"late_actions": "drop"}, "late_seconds has no effect"),
        ({"tasks": ((SKIP,),)}, "makes a task"),
        ({"tasks": ((),)}, "every task needs an action"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rules(**options)


ENTRIES = st.builds(
    Entry,
    st.sampled_from(EntryStage),
    st.integers(1, 2**40),
    st.integers(1, 2**40),
    st.binary(max_size=9),
    st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(tuple),
    st.lists(st.builds(Held, st.integers(-(2**40), 2**40), st.integers(-5, 5)), max_size=3).map(tuple),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.binary(min_size=9, max_size=12), ENTRIES), max_size=3), st.binary(max_size=9))
def test_entries_survive_being_saved_and_a_piece_that_is_cut_off_is_refused(
    entries: list[tuple[bytes, Entry]], gone: bytes
) -> None:
    saved = pack_entries(entries, [gone])
    assert list(unpack_entries(saved)) == [*entries, (gone, None)]
    for size in range(1, len(pack_entries(entries[:1])) if entries else 1):
        with pytest.raises(ValueError, match=f"entries end at byte {size}"):
            list(unpack_entries(saved[:size]))


REQUESTS = st.sampled_from([b"a", b"b", b"c"])
TIMES = st.integers(1, 8).map(lambda tenth: 50 * tenth)
HISTORY = st.lists(
    st.builds(shown, REQUESTS, TIMES)
    | st.builds(done, REQUESTS, TIMES, st.sampled_from([CLICK, LIKE]))
    | st.integers(1, 14).map(lambda tenth: 50 * tenth),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(HISTORY, st.sampled_from(["wait", "fast_emit"]), st.sampled_from(["drop", "count", "correct"]))
def test_every_impression_in_time_goes_out_and_every_event_is_counted(
    history: list[Event | int], mode: str, policy: str
) -> None:
    options: dict[str, Any] = {} if policy == "drop" else {"late_seconds": 0.1}
    chosen = JoinRuleConfig(window_seconds=0.1, mode=mode, late_actions=policy, negative_action=SKIP, **options)
    machine = JoinMachine(chosen)
    found = run(machine, *history, 10**6)
    counts = machine.counts
    assert (machine.entries, machine.num_bytes) == ({}, 0)
    firsts = counts.positives + counts.negatives
    assert firsts == counts.impressions - counts.duplicate_impressions - counts.late_impressions
    assert len(found) == firsts + counts.corrections
    assert Counter(bool(pre) for _, _, pre in found) == Counter({False: firsts, True: counts.corrections})


IMPRESSIONS = st.lists(st.builds(shown, st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 500)), max_size=8)
CLICKS = st.lists(
    st.builds(done, st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 500), st.just(CLICK)), max_size=8
)


def plain_join(impressions: list[Event], actions: list[Event]) -> Counter[Any]:
    """What has to go out: every item that was shown, once, with what was done within its window."""
    first: dict[bytes, Event] = {}
    for each in impressions:
        first.setdefault(each.key, each)
    return Counter(
        (
            key[:-8],
            next(
                (each.actions for each in actions if each.key == key and abs(each.time_ms - one.time_ms) <= WINDOW),
                (SKIP,),
            ),
            (),
        )
        for key, one in first.items()
    )


@settings(max_examples=60, deadline=None)
@given(IMPRESSIONS, CLICKS, st.randoms(use_true_random=False))
def test_any_mixture_of_two_logs_in_order_gives_what_a_plain_join_gives(
    impressions: list[Event], actions: list[Event], random: Any
) -> None:
    chosen = rules(disorder_seconds=0.0, idle_seconds=1000.0)
    logs = {
        "impressions": sorted({each.key: each for each in impressions}.values(), key=lambda each: each.time_ms),
        "actions": sorted(actions, key=lambda each: each.time_ms),
    }
    expected = plain_join(logs["impressions"], logs["actions"])
    machine = JoinMachine(chosen)
    watermark = Watermark.of(chosen, logs, now_ms=0, newest={})
    while any(logs.values()):
        name = random.choice([name for name, log in logs.items() if log])
        event = logs[name].pop(0)
        machine.take([event])
        watermark.hear(name, event.time_ms, now_ms=0)
        machine.advance(watermark.at(now_ms=0))
    machine.advance(10**9)
    assert Counter(map(outcome, machine.take_outgoing())) == expected


@settings(max_examples=60, deadline=None)
@given(
    HISTORY.map(lambda history: [each for each in history if not isinstance(each, int)]),
    st.sampled_from(["wait", "fast_emit"]),
)
def test_with_corrections_the_last_example_of_a_key_has_all_that_was_done(history: list[Event], mode: str) -> None:
    machine = JoinMachine(rules(mode=mode, late_actions="correct"))
    last = {key: set(actions) for key, actions, _ in run(machine, *history, 1000)}
    for request in (b"a", b"b", b"c"):
        mine = [each for each in history if each.key[:-8] == request]
        impression = next((each for each in mine if each.sample), None)
        if impression is None:
            assert request not in last
        else:
            begin = impression.time_ms - WINDOW
            happened = {each.actions[0] for each in mine if each.actions and each.time_ms >= begin}
            assert last[request] == (happened or {SKIP})


def test_an_idle_input_does_not_hold_the_watermark_back_and_silence_advances_it() -> None:
    chosen = rules(disorder_seconds=0.02, idle_seconds=1.0)
    watermark = Watermark.of(chosen, ["impressions", "actions"], now_ms=0, newest={})
    assert watermark.at(now_ms=500) == 0
    watermark.hear("impressions", 5000, now_ms=500)
    assert watermark.at(now_ms=999) == 0
    assert watermark.at(now_ms=1000) == 5000 - 20 - 1
    watermark.hear("actions", 3000, now_ms=1100)
    assert watermark.at(now_ms=1100) == 3000 - 20 - 1
    assert watermark.may_wait("impressions", lead_ms=100, now_ms=1100)
    assert not watermark.may_wait("impressions", lead_ms=2000, now_ms=1100)
    assert not watermark.may_wait("actions", lead_ms=100, now_ms=1100)
    # Both fall silent: from then on a second is a second.
    assert watermark.at(now_ms=2100) == 5000 - 20 - 1
    assert watermark.at(now_ms=3100) == 6000 - 20 - 1
    again = Watermark.of(chosen, ["impressions", "actions"], now_ms=0, newest=watermark.newest)
    assert again.at(now_ms=0) == 3000 - 20 - 1


def test_entries_that_are_kept_elsewhere_take_no_memory_here() -> None:
    machine = JoinMachine(rules())
    machine.take([shown(b"r%d" % number, 1000) for number in range(100)])
    keys = list(machine.entries)[:90]
    kept = {key: machine.entries[key] for key in keys}
    machine.evict(keys)
    assert sum(map(len, machine._timers.values())) == len(machine.entries) == 10
    for key, entry in kept.items():
        machine.insert(key, entry)
    machine.advance(1100)
    assert machine.counts.negatives == 100
    machine.advance(1200)
    assert machine.num_bytes == 0


@pytest.mark.parametrize(
    ("options", "keeps"),
    [({}, False), ({"mode": "fast_emit"}, True), ({"late_actions": "correct"}, True)],
)
def test_samples_are_kept_where_an_example_may_be_corrected(options: dict[str, Any], *, keeps: bool) -> None:
    assert JoinRuleConfig(window_seconds=1.0, negative_action=SKIP, **options).keeps_samples is keeps
