"""A damaged log is never taken for a complete one: reading it raises, or `lag` says that something is left."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from deltalog.increments import PART, increment, opening
from monolith.deltalog import Claim, DeltaLog
from monolith.errors import DataLossError, OpError

RECORDS = 5
"""Of each generation, its opening among them."""


def fill(log: DeltaLog, generations: int = 2) -> None:
    for _ in range(generations):
        claims: list[Claim] = []

        def made(claim: Claim, claims: list[Claim] = claims) -> bytes:
            claims.append(claim)
            return opening(claim, writer=claim.generation)

        with closing(log.transport.open(PART, made)) as appender:
            first, generation = claims[-1].number, claims[-1].generation
            for number in range(first + 1, first + RECORDS):
                found = increment(number, generation=generation, writer=generation, payload=b"x" * (8 * number))
                appender.append(number, found.encode())


def outcome(log: DeltaLog) -> str:
    """What a reader says that begins at the beginning: an error, ``behind``, or the numbers that it read."""
    numbers = []
    try:
        with log.open_reader(PART, number=0) as reader:
            numbers = [each.number for each in reader]
            if reader.lag.increments:
                assert reader.lag.bytes > 0
                return "behind"
    except DataLossError as error:
        where = rf"'{log.place.removeprefix('local://')}/parts/{PART}/\S+', offset \d+"
        return "error" if re.search(where, error.message) else f"error without a place: {error}"
    return " ".join(map(str, numbers))


ALL = " ".join(map(str, range(2 * RECORDS)))


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    made = DeltaLog(tmp_path / "log")
    fill(made)
    assert outcome(made) == ALL
    return made


def segments(log: DeltaLog) -> list[Path]:
    return sorted((Path(log.place) / "parts" / PART).iterdir())


def boundaries(data: bytes) -> list[int]:
    return [at for at in range(0, len(data), 8) if data[at : at + 4] == b"MDLI"]


def test_changed_bytes_of_the_newest_segment_are_an_error(log: DeltaLog) -> None:
    newest = segments(log)[-1]
    whole = newest.read_bytes()
    for at in range(0, len(whole), 11):
        newest.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert outcome(log) == "error", at


def test_changed_bytes_of_an_older_segment_are_an_error(log: DeltaLog) -> None:
    oldest = segments(log)[0]
    whole = oldest.read_bytes()
    for at in range(0, len(whole), 31):
        oldest.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        assert outcome(log) == "error", at


def test_a_torn_end_is_lag_and_no_error(log: DeltaLog) -> None:
    newest = segments(log)[-1]
    whole = newest.read_bytes()
    starts = boundaries(whole)
    for at in sorted({*range(1, len(whole), 13), *starts[1:]}):
        newest.write_bytes(whole[:at])
        # What is cut off at the end of a record cannot be told from a log that ends there.
        expected = " ".join(map(str, range(RECORDS + starts.index(at)))) if at in starts else "behind"
        assert outcome(log) == expected, at
    for zeros in (1, 64, 200):  # room that a file system made and did not fill
        newest.write_bytes(whole + bytes(zeros))
        assert outcome(log) == "behind", zeros


def test_a_torn_record_of_a_killed_writer_does_not_stop_the_next_one(log: DeltaLog) -> None:
    newest = segments(log)[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    fill(log, 1)
    assert outcome(log) == " ".join(map(str, range(3 * RECORDS - 1)))


def test_the_next_writer_does_not_hide_a_damaged_last_record(log: DeltaLog) -> None:
    newest = segments(log)[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-9] + b"?" + whole[-8:])
    fill(log, 1)
    extent = log.extent(PART)
    assert extent is not None
    assert extent.next == 3 * RECORDS
    assert outcome(log) == "error"


def test_the_number_of_a_damaged_last_record_is_not_given_again(log: DeltaLog) -> None:
    newest = segments(log)[-1]
    whole = newest.read_bytes()
    fourth, last = boundaries(whole)[-2:]
    newest.write_bytes(whole[:fourth] + whole[last:-9] + b"?" + whole[-8:])  # the record before it is lost
    extent = log.extent(PART)
    assert extent is not None
    assert extent.next == 2 * RECORDS
    assert outcome(log) == "error"


def test_a_file_that_is_read_in_short_pieces_is_read_completely(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 150), offset))
    assert outcome(log) == ALL


def test_the_next_writer_does_not_hide_records_after_damage(log: DeltaLog) -> None:
    newest = segments(log)[-1]
    whole = bytearray(newest.read_bytes())
    whole[boundaries(bytes(whole))[2] + 200] ^= 1
    newest.write_bytes(whole)
    fill(log, 1)
    assert outcome(log) == "error"
    with log.open_reader(PART, number=RECORDS + 3) as reader:  # one that begins behind the damage reads on
        assert [each.number for each in reader] == list(range(RECORDS + 3, 3 * RECORDS))


@pytest.mark.parametrize("generations", [1, 2], ids=["alone", "with a newer one"])
def test_a_damaged_opening_is_an_error(tmp_path: Path, generations: int) -> None:
    log = DeltaLog(tmp_path / "log")
    fill(log, generations)
    first = segments(log)[0]
    whole = first.read_bytes()
    for kept in (len(whole), boundaries(whole)[1]):  # with its records, and the opening alone
        first.write_bytes(b"?" + whole[1:kept])
        assert log.parts() == [PART]
        assert outcome(log) == "error"


def test_a_damaged_opening_does_not_let_records_of_a_replaced_writer_count(log: DeltaLog) -> None:
    fill(log, 1)
    replaced, damaged, _ = segments(log)
    stale = [increment(number, writer=1).encode() for number in range(RECORDS, 2 * RECORDS)]
    replaced.write_bytes(replaced.read_bytes() + b"".join(stale))
    assert outcome(log) == " ".join(map(str, range(3 * RECORDS)))
    with log.open_reader(PART, number=0) as reader:
        assert {each.generation for each in reader if RECORDS <= each.number < 2 * RECORDS} == {2}
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    assert outcome(log) == "error"


def test_a_segment_in_the_place_of_another_is_an_error(log: DeltaLog) -> None:
    one, two = segments(log)
    first, second = one.read_bytes(), two.read_bytes()
    two.write_bytes(first)
    assert outcome(log) == "error"
    one.write_bytes(second)
    assert outcome(log) == "error"


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_segment_copied_to_a_newer_generation_is_an_error_also_for_a_reader_that_begins_late(
    log: DeltaLog, ahead: int
) -> None:
    for path in segments(log):
        copy = path.with_name(f"{2 + ahead:08d}-000000.log")
        shutil.copy(path, copy)
        assert outcome(log) == "error"
        with log.open_reader(PART, number=RECORDS + 2) as reader:
            with pytest.raises(
                DataLossError, match=rf"'{copy}', offset 0: a record of generation {2 + ahead} expected"
            ):
                list(reader)
            assert reader.lag.increments > 0
        copy.unlink()


Harm = Callable[[random.Random, bytes], bytes]


def changed(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + draw.randbytes(1) + data[at + 1 :]


def zeroed(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes(len(data[at : at + 64])) + data[at + 64 :]


def inserted(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + draw.randbytes(8) + data[at:]


def cut_out(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data)) // 8 * 8
    return data[:at] + data[at + 8 * draw.randint(1, 100) :]


def doubled(draw: random.Random, data: bytes) -> bytes:
    return data + data[draw.randrange(len(data)) // 8 * 8 :]


@pytest.mark.parametrize("harm", [changed, zeroed, inserted, cut_out, doubled], ids=lambda each: each.__name__)
def test_random_damage_never_ends_as_up_to_date_with_less(log: DeltaLog, tmp_path: Path, harm: Harm) -> None:
    draw = random.Random(harm.__name__)  # noqa: S311 - it is to be the same again
    for _ in range(40):
        copy = DeltaLog(tmp_path / "copy")
        shutil.copytree(log.place, copy.place, dirs_exist_ok=True)
        path = draw.choice(segments(copy))
        whole = path.read_bytes()
        data = harm(draw, whole)
        path.write_bytes(data)
        is_cut_at_a_record = whole.startswith(data) and len(data) in boundaries(whole) and "0000002-" in path.name
        assert outcome(copy) in {"error", "behind", ALL} or is_cut_at_a_record, path


class TestObjects:
    @pytest.fixture
    def log(self, tmp_path: Path) -> DeltaLog:
        made = DeltaLog(f"local://{tmp_path}/log")
        fill(made)
        assert outcome(made) == ALL
        return made

    @staticmethod
    def objects(log: DeltaLog) -> list[Path]:
        return sorted((Path(log.place.removeprefix("local://")) / "parts" / PART).iterdir())

    @pytest.mark.parametrize("index", [0, RECORDS, 2 * RECORDS - 1], ids=["first", "opening", "last"])
    def test_changed_or_lost_bytes_of_an_object_are_an_error(self, log: DeltaLog, index: int) -> None:
        path = self.objects(log)[index]
        whole = path.read_bytes()
        for at in range(0, len(whole), 11):
            for data in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at]):
                path.write_bytes(data)
                assert outcome(log) == "error", at

    def test_an_object_in_the_place_of_another_is_an_error(self, log: DeltaLog) -> None:
        objects = self.objects(log)
        shutil.copy(objects[3], objects[-1])
        assert outcome(log) == "error"

    def test_a_writer_continues_after_a_damaged_last_object(self, log: DeltaLog) -> None:
        self.objects(log)[-1].write_bytes(b"")
        fill(log, 1)
        with log.open_reader(PART, number=2 * RECORDS) as reader:
            assert [each.number for each in reader] == list(range(2 * RECORDS, 3 * RECORDS))
        self.objects(log)[-1].write_bytes(b"")
        with pytest.raises(OpError, match=r"14\.increment.*a head of 128 bytes expected, got 0"):
            log.transport.open(PART, opening, after_writer=3)
