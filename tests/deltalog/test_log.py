"""A log in a folder: what readers say of torn, damaged and missing records, and what writers do after errors."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from deltalog.increments import PART, increment
from monolith.deltalog import Base, DeltaLog, FileTransport, GapError, IncrementKind, PartReader, PartWriter
from monolith.deltalog import log as log_module
from monolith.deltalog.increment import read_head
from monolith.deltalog.log import kept_by
from monolith.deltalog.transports import file_segments
from monolith.deltalog.transports.object_transport import ObjectTransport
from monolith.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnimplementedError,
)
from monolith.testing import FakeClock

ROWS = IncrementKind.ROWS


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    return DeltaLog(tmp_path / "log", segment_bytes=2000)


def write(log: DeltaLog, count: int) -> PartWriter:
    writer = log.open_writer(PART)
    for number in range(count):
        writer.append(kind=ROWS, payload=bytes([number]) * 300)
    writer.close()
    return writer


def writer_of(log: DeltaLog) -> int:
    extent = log.extent(PART)
    assert extent is not None
    return extent.writer


def segments(log: DeltaLog) -> list[Path]:
    return sorted((Path(log.place) / "parts" / PART).iterdir())


def numbers(reader: PartReader) -> list[int]:
    return [each.number for each in reader]


def read_until_it_fails(reader: PartReader, found: list[int]) -> None:
    """The end of a log is judged when it was seen twice."""
    for _ in range(20):
        each = reader.read()
        found += [] if each is None else [each.number]


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("left", [1, 100, 128, 150])
def test_a_reader_waits_at_a_torn_tail_and_resumes_after_it(log: DeltaLog, left: int) -> None:
    write(log, 2)
    (last,) = segments(log)
    begin = last.stat().st_size
    whole = last.read_bytes() + increment(3, writer=writer_of(log)).encode()
    last.write_bytes(whole[: begin + left])
    with log.open_reader(PART) as reader:
        assert numbers(reader) == [0, 1, 2]
        assert reader.read() is None
        last.write_bytes(whole)
        reader.wait(10.0, threading.Event())
        assert numbers(reader) == [3]


def test_what_a_killed_writer_left_is_passed_over(log: DeltaLog) -> None:
    write(log, 2)
    with segments(log)[-1].open("ab") as file:
        file.write(increment(3, writer=writer_of(log)).encode()[:-20])
    (segments(log)[0].parent / "00000002-000000.log").touch()  # killed before it wrote its opening
    writer = write(log, 1)
    assert writer.generation == 3
    with log.open_reader(PART) as reader:
        assert numbers(reader) == [0, 1, 2, 3, 4]


def test_room_that_a_lost_disk_filled_with_zeros_is_a_torn_tail(log: DeltaLog) -> None:
    write(log, 1)
    with segments(log)[-1].open("ab") as file:
        file.write(b"\0" * 5000)
    with log.open_reader(PART) as reader:
        assert numbers(reader) == [0, 1]
        assert reader.read() is None


@pytest.mark.parametrize("segment", [0, -1])
def test_a_corrupt_record_is_named(log: DeltaLog, segment: int) -> None:
    write(log, 12)
    assert len(segments(log)) > 2
    damage(segments(log)[segment], -20)
    where = rf"\(file '{segments(log)[segment]}', offset \d+\)"
    with log.open_reader(PART) as reader:
        found: list[int] = []
        with pytest.raises(DataLossError, match=rf"'{PART}', generation 1, increment \d+: checksum of .*{where}"):
            read_until_it_fails(reader, found)
        assert found == list(range(len(found)))
        with pytest.raises(DataLossError, match="does not match"):
            reader.read()  # what is wrong stays wrong


def test_a_missing_segment_is_a_gap_with_its_numbers(log: DeltaLog) -> None:
    write(log, 12)
    segments(log)[1].unlink()
    with log.open_reader(PART) as reader, pytest.raises(GapError, match=r"increments \d+ to \d+ are missing"):
        numbers(reader)


def test_a_log_recreated_from_scratch_is_detected(log: DeltaLog) -> None:
    write(log, 2)
    with pytest.raises(DataLossError, match="increment 9 was requested, but the part ends before increment 3"):
        log.open_reader(PART, number=9)


def test_a_missing_log_has_no_position_and_nothing_to_trim(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path / "absent")
    assert log.position() == {}
    assert log.trim() == {}


def test_a_reader_at_the_end_waits(log: DeltaLog) -> None:
    write(log, 1).close()
    with log.open_reader(PART) as reader:
        numbers(reader)
        begin = time.monotonic()
        reader.wait(0.2, threading.Event())
        assert time.monotonic() - begin >= 0.1


def test_lag_is_reported_in_increments_bytes_and_seconds(tmp_path: Path) -> None:
    clock = FakeClock(1000.0)
    log = DeltaLog(tmp_path / "log", clock=clock)
    writer = write(log, 1)
    with log.open_reader(PART) as reader:
        numbers(reader)
        assert reader.lag == (0, 0, 0.0)
        clock.advance(5.0)
        for _ in range(2):
            writer.append(kind=ROWS, payload=b"x" * 1000)
        writer.close()
        increments, size, seconds = reader.lag
    assert (increments, round(seconds)) == (3, 5)  # the writer was closed, and opened the part anew
    assert 2000 < size < 4000


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much of records is read, look by look."""
    counted: list[int] = []
    real = file_segments._pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        counted.append(size)
        return real(descriptor, size, offset)

    monkeypatch.setattr(file_segments, "_pread", pread)
    return counted


def test_a_second_check_of_the_end_of_a_part_reads_only_newer_records(tmp_path: Path, bytes_read: list[int]) -> None:
    log = DeltaLog(tmp_path / "log")
    writer = log.open_writer(PART)
    writer.append(kind=ROWS, payload=bytes(1 << 20))
    first = log.extent(PART)
    assert first is not None
    assert sum(bytes_read) > 1 << 20
    bytes_read.clear()
    assert (log.extent(PART), log.parts()) == (first, [PART])
    assert bytes_read == []
    writer.append(kind=ROWS, payload=b"x" * 100)
    assert log.extent(PART) == first._replace(next=first.next + 1)
    assert 0 < sum(bytes_read) < 1000
    writer.close()


def test_a_truncated_or_rewritten_end_is_found_again(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path / "log")
    write(log, 3)
    known = log.extent(PART)
    assert known is not None
    (path,) = segments(log)
    data = path.read_bytes()
    for damaged in (data[:-200], data[:-1], data[: -len(data) // 4] + bytes(len(data) // 4)):
        path.write_bytes(damaged)
        found = DeltaLog(log.place).extent(PART)
        assert found is not None
        assert log.extent(PART) == found == known._replace(next=known.next - 1)
        path.write_bytes(data)
        assert log.extent(PART) == known
    path.unlink()
    assert log.extent(PART) is None


def test_a_writer_continues_after_an_error_and_nothing_of_the_failed_record_counts(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.open_writer(PART, base="begin")
    writer.append(kind=ROWS, payload=b"first")
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        pwrite(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(3):
        with pytest.raises(ResourceExhaustedError, match="No space left"):
            writer.append(kind=ROWS, payload=b"lost")
    monkeypatch.undo()
    writer.append(kind=ROWS, payload=b"second")
    writer.close()
    with log.open_reader(PART) as reader:
        found = list(reader)
    assert [each.payload for each in found if each.kind is ROWS] == [b"first", b"second"]
    assert [each.number for each in found] == list(range(len(found)))
    # A reader that reopened the base would lose what came behind it.
    assert [each.base for each in found if each.kind is IncrementKind.OPENING] == ["begin", None]


def test_a_replaced_writer_stays_rejected(log: DeltaLog) -> None:
    old = log.open_writer(PART)
    write(log, 1)
    for _ in range(2):
        with pytest.raises(AbortedError, match="another writer has the part now"):
            old.append(kind=ROWS, payload=b"late")
    with log.open_reader(PART) as reader:
        assert b"late" not in [each.payload for each in reader]


def test_increments_after_a_position_are_returned_or_reported_as_trimmed(log: DeltaLog) -> None:
    write(log, 12)
    assert [each.number for each in log.behind(PART, 9)] == [10, 11, 12]
    with pytest.raises(GapError, match="increment 13 does not exist"):
        list(log.behind(PART, 13))
    log.transport.trim(PART, 12)
    with pytest.raises(GapError, match="increments 2 to"):
        list(log.behind(PART, 1))


def test_increments_after_a_position_are_awaited_while_another_writer_acquires_the_part(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, 3)
    (begun := segments(log)[0].with_name("00000002-000000.log")).touch()  # as a writer does first
    wait, waits = PartReader.wait, []

    def give_up_and_wait(reader: PartReader, seconds: float, stop: threading.Event) -> None:
        waits.append(seconds)
        begun.unlink(missing_ok=True)
        wait(reader, seconds, stop)

    with monkeypatch.context() as patch:
        patch.setattr(PartReader, "wait", give_up_and_wait)
        assert [each.number for each in log.behind(PART, 0)] == [1, 2, 3]
    assert waits, "the last one was not settled"
    begun.touch()
    monkeypatch.setattr(log_module, "_LOOKS", 3)
    found = log.behind(PART, 0)
    assert [next(found).number, next(found).number] == [1, 2]
    with pytest.raises(GapError, match=r"increments 3 to 3 did not settle within 0\.15 s"):
        next(found)


def base(name: str, numbers: dict[str, int]) -> Base:
    created = max(numbers.values())
    return Base(name=name, kind="snapshots", path="x", numbers=numbers, stores={"model": "m"}, created_ms=created)


def test_a_base_of_one_part_keeps_those_of_other_parts() -> None:
    low, high = "model.0000-0512", "model.0512-1024"
    both, one = base("both", {low: 5, high: 6, "dense": 3}), base("one", {low: 9})
    kept = kept_by([both, one], [low, high, "dense"], keep=1)
    assert kept.bases == [both, one]
    assert kept.needed == {low: 10, high: 7, "dense": 0}  # the first has a number and no weights


def test_retention_keeps_what_the_oldest_kept_base_needs(log: DeltaLog) -> None:
    write(log, 20)
    assert log.trim() == {PART: 0}  # without a base everything is needed
    for number in (5, 11, 15):
        log.add_base(base(f"b{number}", {PART: number}))
    first = log.trim(keep_bases=2)[PART]
    assert 0 < first <= 12
    assert [each.name for each in log.bases()] == ["b11", "b15"]
    with log.open_reader(PART, number=12) as reader:
        assert numbers(reader) == list(range(12, 21))
    with pytest.raises(InvalidArgumentError, match="keep_bases must be >= 1, got 0"):
        log.trim(keep_bases=0)


def test_a_folder_with_other_content_is_not_modified(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").touch()
    with pytest.raises(FailedPreconditionError, match="it holds other things than a delta log"):
        DeltaLog(tmp_path).open_writer(PART)
    assert [each.name for each in tmp_path.iterdir()] == ["model.ckpt"]


def test_a_base_that_is_none_is_named(log: DeltaLog) -> None:
    write(log, 0)
    log.transport.put_document("b.json", b'{"format": "else"}')
    with pytest.raises(DataLossError, match=r"document 'b.json': not the description of a base"):
        log.bases()


def test_a_store_of_objects_that_cannot_fence_is_refused() -> None:
    class Plain(AbstractFileSystem):  # type: ignore[misc]
        """A driver that would check first and then write."""

        protocol = "plain"

    fsspec.register_implementation("plain", Plain, clobber=True)
    transport = ObjectTransport("plain://log")
    with pytest.raises(UnimplementedError, match="cannot create an object only if it does not exist"):
        transport.open(PART, lambda _: b"")


def test_places_are_distinguished_and_invalid_ones_named() -> None:
    with pytest.raises(InvalidArgumentError, match="expected kafka://host:port,host:port/topic"):
        DeltaLog("kafka://broker")
    with pytest.raises(InvalidArgumentError, match="a part is called 'dense', or like"):
        DeltaLog("log").open_reader("../x")


@pytest.mark.parametrize("place", ["files", "objects"])
def test_increments_appended_together_are_read_one_by_one(place: str, tmp_path: Path) -> None:
    with DeltaLog(tmp_path / "log" if place == "files" else f"file://{tmp_path}/log") as log:
        with log.open_writer(PART) as writer:
            first = writer.next_number()
            found = writer.append_all([{"kind": ROWS, "step": first}] * 3)
            assert [each.number for each in found] == [1, 2, 3]
            assert writer.append(kind=IncrementKind.STATE, payload=b"{}").number == 4
        with log.open_reader(PART) as reader:
            assert [(each.number, each.kind, each.step) for each in reader][1:] == [
                (1, ROWS, 1),
                (2, ROWS, 1),
                (3, ROWS, 1),
                (4, IncrementKind.STATE, 0),
            ]


def test_several_increments_in_a_folder_need_one_sync(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with log.open_writer(PART) as writer:
        synced: list[int] = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        writer.append_all([{"kind": ROWS, "payload": b"x"}] * 5)
        assert len(synced) == 1


def test_a_writer_that_withdraws_leaves_the_part_to_the_one_before(log: DeltaLog) -> None:
    transport = log.transport
    assert isinstance(transport, FileTransport)
    with log.open_writer(PART) as before:
        before.append(kind=ROWS)
        with log.open_writer(PART) as second, pytest.raises(AbortedError):
            before.append(kind=ROWS)
        transport.withdraw(PART, range(second.generation, second.generation + 1))
        before.append(kind=ROWS, payload=b"continued")
    with log.open_reader(PART) as reader:
        assert [each.payload for each in reader][-1] == b"continued"
    transport.withdraw(PART, range(second.generation))  # a newer one has the part
    assert log.extent(PART) is not None
    transport.withdraw(PART)
    assert log.extent(PART) is None
    with log.open_writer(PART) as writer:
        assert writer.last_number == 0


def test_a_reader_of_objects_skips_none_that_appears_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = ObjectTransport("memory://appears")
    with PartWriter(transport, PART, schema=None) as writer:
        writer.append(kind=IncrementKind.ROWS)
        writer.append(kind=IncrementKind.ROWS)
    tail = transport.tail(PART, 1)
    read = transport.read
    misses = [None]
    monkeypatch.setattr(transport, "read", lambda part, number: misses.pop() if misses else read(part, number))
    first, second = tail.next(), tail.next()
    assert first is not None
    assert second is not None
    assert [read_head(record, origin="test").number for record in (first, second)] == [1, 2]
    tail.close()
