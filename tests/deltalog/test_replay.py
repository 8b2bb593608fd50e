"""The machine of readers, against a plain model of a log with writers that replace, repeat, lose and damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalog.increments import PART, increment
from monolith.deltalog import GapError, IncrementKind, Outcome, Replay, Verdict
from monolith.errors import DataLossError, FailedPreconditionError
from monolith.tables import LocalStore, Segment, TableConfig

OPENING = IncrementKind.OPENING


def replay(**options: object) -> Replay:
    return Replay(PART, place="log", **options)  # type: ignore[arg-type]


def first_generation(numbers: int) -> list[bytes]:
    rest = [increment(number).encode() for number in range(1, numbers)]
    return [increment(0, kind=OPENING).encode(), *rest]


def take_all(machine: Replay, records: list[bytes]) -> list[Outcome]:
    return [machine.take(record) for record in records]


def test_increments_are_applied_in_order_and_duplicates_ignored() -> None:
    records = first_generation(3)
    machine = replay()
    outcomes = take_all(machine, [records[0], records[1], records[1], records[0], records[2]])
    assert [each.verdict.name for each in outcomes] == ["NEW_GENERATION", "APPLY", "IGNORE", "IGNORE", "APPLY"]
    assert machine.next_number == 3
    assert "was read before, increment 2 is next" in outcomes[2].text


def test_a_gap_is_named_and_stays() -> None:
    machine = replay()
    take_all(machine, first_generation(2))
    for record in (increment(5).encode(), increment(2).encode()):
        outcome = machine.take(record)
        with pytest.raises(GapError, match=r"increments 2 to 4 are missing before increment 5; resume from"):
            outcome.require()


@pytest.mark.parametrize("where", [0, 60, 150, -3])
def test_a_corrupt_record_is_named_with_the_number_that_was_expected(where: int) -> None:
    machine = replay()
    take_all(machine, first_generation(4))
    damaged = bytearray(increment(4).encode())
    damaged[where] ^= 4
    outcome = machine.take(bytes(damaged))
    assert outcome.verdict is Verdict.CORRUPT
    with pytest.raises(DataLossError, match=rf"part '{PART}', generation 1, increment 4: .*resume from a later base"):
        outcome.require()


def test_a_record_of_another_part_is_corrupt() -> None:
    outcome = replay().take(increment(0, part="dense").encode())
    assert outcome.verdict is Verdict.CORRUPT
    assert "is of part 'dense'" in outcome.text


def test_older_generations_are_refused_and_newer_ones_followed() -> None:
    machine = replay()
    take_all(machine, first_generation(3))
    opened = increment(3, generation=2, writer=8, kind=OPENING).encode()
    late = increment(3).encode()
    outcomes = take_all(machine, [opened, late, increment(4, generation=2, writer=8).encode()])
    assert [each.verdict for each in outcomes] == [Verdict.NEW_GENERATION, Verdict.IGNORE, Verdict.APPLY]
    assert "generation 1, which generation 2 has replaced" in outcomes[1].text


def test_of_two_that_open_a_generation_the_first_counts() -> None:
    machine = replay()
    take_all(machine, first_generation(3))
    winner = increment(3, generation=2, writer=8, kind=OPENING)
    loser = increment(3, generation=2, writer=9, kind=OPENING)
    more = [increment(4, generation=2, writer=9), increment(4, generation=2, writer=8)]
    verdicts = [each.verdict for each in take_all(machine, [one.encode() for one in (winner, loser, *more)])]
    assert verdicts == [Verdict.NEW_GENERATION, Verdict.IGNORE, Verdict.IGNORE, Verdict.APPLY]


def test_an_opening_that_came_too_late_opens_nothing() -> None:
    machine = replay()
    take_all(machine, first_generation(4))  # its maker had seen three records
    assert machine.take(increment(3, generation=2, writer=8, kind=OPENING).encode()).verdict is Verdict.IGNORE
    assert machine.take(increment(4).encode()).verdict is Verdict.APPLY


def test_a_generation_without_its_opening_is_a_gap() -> None:
    machine = replay()
    take_all(machine, first_generation(3))
    outcome = machine.take(increment(3, generation=2, writer=8).encode())
    assert outcome.verdict is Verdict.GAP
    assert "the opening of generation 2 is missing" in outcome.text


def test_a_log_of_another_model_is_refused_with_what_differs() -> None:
    ours = LocalStore({"item": TableConfig([Segment(4)])}).schema
    theirs = LocalStore({"item": TableConfig([Segment(8)])}).schema
    opened = increment(0, kind=OPENING, schema_digest=theirs.digest, payload=theirs.text.encode())
    with pytest.raises(FailedPreconditionError, match="of another model: table 'item', segment 0: expected 4,"):
        replay(schema=ours).take(opened.encode()).require()
    with pytest.raises(FailedPreconditionError, match=f"digest {ours.digest:#x} expected, got {theirs.digest:#x}"):
        replay(schema=ours).take(increment(3, schema_digest=theirs.digest).encode()).require()
    assert replay(schema=theirs).take(opened.encode()).verdict is Verdict.NEW_GENERATION


def test_reading_may_begin_at_any_number() -> None:
    machine = replay(next_number=2)
    verdicts = [each.verdict.name for each in take_all(machine, first_generation(4))]
    assert verdicts == ["IGNORE", "IGNORE", "APPLY", "APPLY"]
    assert replay().take(increment(17).encode()).verdict is Verdict.APPLY


@given(seed=st.integers(0, 10_000), begin=st.integers(0, 6))
def test_every_reader_applies_the_log_once_whatever_else_is_between(seed: int, begin: int) -> None:
    """The log: writers replace each other; duplicates, late records and lost openings lie between its records.

    A writer that was replaced learns it from its first record that does not count, whose number was taken before.
    """
    draw = random.Random(seed)  # noqa: S311 - a test that can be repeated
    log, records, generation, writer = [], [], 0, 0
    for number in range(14):
        if number == 0 or draw.random() < 0.25:
            generation, writer = generation + 1, writer + 1
            made = increment(number, generation=generation, writer=writer, kind=OPENING)
        else:
            made = increment(number, generation=generation, writer=writer)
        log.append(made)
        records.append(made.encode())
        for _ in range(draw.randrange(3)):
            kind = draw.choice(["duplicate", "late", "lost opening", "second"])
            if kind == "duplicate":
                records.append(draw.choice(records))
            elif kind == "late" and generation > 1:
                records.append(increment(number, generation=generation - 1, writer=writer - 1).encode())
            elif kind == "lost opening":
                records.append(increment(number, generation=generation + 1, writer=99, kind=OPENING).encode())
            elif kind == "second":
                records.append(increment(number, generation=generation, writer=77, kind=OPENING).encode())
    machine = replay(next_number=begin)
    outcomes = take_all(machine, records)
    assert [each.increment for each in outcomes if each.verdict.counts] == log[begin:]
    assert machine.wrong is None
