"""The machine of `monolith log verify`: it names every fault of a part and reads on behind it."""

from __future__ import annotations

import pytest

from deltalog.increments import PART, increment
from monolith.deltalog import Audit, Fault, Finding, IncrementKind
from monolith.tables import LocalStore, Segment, TableConfig

OPENING = IncrementKind.OPENING


def audited(*records: bytes) -> Audit:
    audit = Audit(PART, place="log")
    for index, record in enumerate(records):
        audit.take(record, where=f"record {index}")
    return audit


def first_generation(count: int) -> list[bytes]:
    return [increment(0, kind=OPENING).encode(), *(increment(number).encode() for number in range(1, count))]


def brief(findings: list[Finding]) -> list[tuple[Fault, int | None, int | None]]:
    return [(found.fault, found.generation, found.number) for found in findings]


def test_an_intact_part_has_no_findings_and_its_records_are_counted() -> None:
    audit = audited(*first_generation(4))
    assert (audit.findings, audit.records, audit.replaced) == ([], 4, 0)


@pytest.mark.parametrize("at", [0, 60, -3])
def test_a_corrupt_record_is_named_and_the_records_after_it_are_read(at: int) -> None:
    records = first_generation(5)
    damaged = bytearray(records[2])
    damaged[at] ^= 4
    records[2] = bytes(damaged)
    audit = audited(*records)
    assert brief(audit.findings) == [(Fault.CORRUPT, 1, 2)]
    assert "(record 2)" in audit.findings[0].text
    assert audit.records == 4


def test_a_record_of_another_part_is_corrupt_and_does_not_count() -> None:
    records = first_generation(3)
    audit = audited(*records[:2], increment(2, part="dense").encode(), *records[2:])
    assert brief(audit.findings) == [(Fault.CORRUPT, 1, 2)]
    assert audit.records == 3


def test_a_gap_a_late_record_and_a_duplicate_are_distinguished() -> None:
    records = first_generation(7)
    audit = audited(*records[:2], records[4], records[3], records[5], records[5], records[6])
    assert brief(audit.findings) == [(Fault.REORDERED, 1, 3), (Fault.DOUBLED, 1, 5), (Fault.GAP, 1, 2)]
    assert "it comes too late" in audit.findings[0].text
    assert audit.records == 5


def test_a_late_record_that_fills_its_gap_leaves_no_gap() -> None:
    records = first_generation(4)
    assert brief(audited(records[0], records[1], records[3], records[2]).findings) == [(Fault.REORDERED, 1, 2)]


def test_records_of_a_replaced_writer_are_counted_apart() -> None:
    replacing = increment(3, generation=2, writer=8, kind=OPENING).encode()
    audit = audited(*first_generation(3), replacing, increment(3).encode())
    assert (audit.findings, audit.records, audit.replaced) == ([], 4, 1)


def test_an_opening_of_another_model_is_foreign_and_its_records_are_read() -> None:
    ours, theirs = (LocalStore({"user": TableConfig([Segment(dim)])}).schema for dim in (2, 3))
    own = increment(0, kind=OPENING, schema_digest=ours.digest, payload=ours.text.encode())
    foreign = {"generation": 2, "writer": 8, "schema_digest": theirs.digest}
    audit = audited(
        own.encode(),
        increment(1, kind=OPENING, payload=theirs.text.encode(), **foreign).encode(),
        increment(2, **foreign).encode(),
    )
    assert brief(audit.findings) == [(Fault.FOREIGN, 1, 1)]
    assert "of another model" in audit.findings[0].text


def test_an_opening_without_a_schema_that_can_be_read_is_corrupt() -> None:
    audit = audited(increment(0, kind=OPENING, payload=b"\xff no schema").encode())
    assert brief(audit.findings) == [(Fault.CORRUPT, 1, 0)]
    assert "no schema" in audit.findings[0].text
