"""Every framing is read; a wrong one, a damaged or a cut file is an error with name and place, never a short file."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

from data.framed_files import frame, framed, samples, u64
from monolith import _core
from monolith.data import (
    BadRecords,
    Framing,
    RecordPosition,
    RecordReader,
    RecordWriter,
    SampleFormat,
    read_examples,
    source_key,
    split_records,
    write_examples,
)
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError


def file_of(tmp_path: Path, data: bytes, name: str = "samples") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("sort_id", [b"", b"abc", bytes(range(256)) * 3], ids=["none", "short", "long"])
@pytest.mark.parametrize("framing", Framing)
def test_records_of_every_framing_are_read(tmp_path: Path, framing: Framing, sort_id: bytes) -> None:
    payloads = samples(40)
    path = file_of(tmp_path, framed(framing, payloads, sort_id, word=11))
    assert list(read_examples(path, framing)) == payloads
    with RecordReader(path, framing) as reader:
        assert [record for block in reader.blocks() for record in block] == payloads
        assert reader.position == RecordPosition(path.stat().st_size, 40)


def test_what_the_core_takes_has_a_name() -> None:
    """Parts are the core's, names are ours: neither may have one that the other does not know."""
    taken = set()
    for number in range(2 * max(part.value for part in _core.FramingPart)):
        with contextlib.suppress(InvalidArgumentError):
            _core.framing_tail(number)
            taken.add(number)
    assert taken == {framing.value for framing in Framing}, "add the framing to data/records/framing.py"


@pytest.mark.parametrize("number", [3, 9, 18, 1 << 20, 1 << 31])
def test_parts_that_make_no_framing_are_refused(number: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"a framing must be tfrecord, .*, got the parts {number}"):
        _core.scan_frames(
            np.zeros(8, np.uint8), 0, framing=number, at_end=True, max_record_bytes=1 << 20, max_records=1
        )


@pytest.mark.parametrize("framing", Framing)
def test_a_framing_is_documented(framing: Framing) -> None:
    page = Path(__file__).parents[2] / "docs" / "formats" / "framings.md"
    cells = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    found = [row[4].strip() for row in cells if f"`{framing.name}`" in row[1]]
    assert found == ["yes" if framing.is_written else ""], "give it a line in the table under 'Records'"


@pytest.mark.parametrize("framing", [framing for framing in Framing if framing.is_written])
def test_what_is_written_is_what_an_independent_writer_writes(tmp_path: Path, framing: Framing) -> None:
    payloads = [*samples(30), b"", b"x" * 3_000_000]
    path = tmp_path / "written"
    assert write_examples(path, payloads, framing) == 32
    assert path.read_bytes() == framed(framing, payloads)
    assert list(read_examples(path, framing, sample="plaintext")) == payloads
    assert [entry.name for entry in tmp_path.iterdir()] == ["written"]


def test_conformance_vectors() -> None:
    assert list(split_records(bytes.fromhex("0200000000000000 0801"))) == [b"\x08\x01"]
    with_sort_id = bytes.fromhex("0300000000000000 616263 0200000000000000 0801")
    assert list(split_records(with_sort_id, Framing.SORT_ID)) == [b"\x08\x01"]
    assert source_key("news") == 864736000
    assert source_key("ads_flow") == 3912195328
    assert source_key("") == 0
    word = int.from_bytes(bytes.fromhex("00d38a3300000000"), "little")
    records = split_records(framed(Framing.LAGRANGEX, [b"\x08\x01"], word=word | 1), Framing.LAGRANGEX)
    assert records.source_keys().tolist() == [source_key("news")]


def test_the_written_sort_id_appears_in_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "sorted"
    with RecordWriter(path, "sort_id") as writer:
        writer.write(b"\x08\x01", sort_id=b"abc")
    assert path.read_bytes().hex() == "0300000000000000" + "616263" + "0200000000000000" + "0801"
    with RecordWriter(tmp_path / "plain") as writer, pytest.raises(InvalidArgumentError, match="has no sort id"):
        writer.write(b"x", sort_id=b"abc")


@pytest.mark.parametrize("framing", [framing for framing in Framing if not framing.is_written])
def test_framings_that_are_only_read_are_not_written(tmp_path: Path, framing: Framing) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"{framing.name} is only read; write one of PLAIN, SORT_ID, TFRECORD"
    ):
        RecordWriter(tmp_path / "x", framing)
    assert list(tmp_path.iterdir()) == []


def read_or_message(path: Path, framing: Framing) -> tuple[list[bytes], str]:
    try:
        return list(read_examples(path, framing)), ""
    except DataLossError as error:
        return [], str(error)


@pytest.mark.parametrize("said", Framing)
@pytest.mark.parametrize("actual", Framing)
@pytest.mark.parametrize("sort_id", [b"", b"row-key-000017"], ids=["no sort id", "sort id"])
def test_a_wrong_framing_is_named_or_reads_the_same_records(
    tmp_path: Path, actual: Framing, said: Framing, sort_id: bytes
) -> None:
    payloads = samples(30)
    path = file_of(tmp_path, framed(actual, payloads, sort_id))
    read, message = read_or_message(path, said)
    if message:
        assert actual is not said
        assert f"file '{path}': offset 0" in message
        assert said.name in message
        assert "fits" in message
    else:
        # Some headers are the same bytes: an empty sort id and a lagrangex word of 0.
        assert read == payloads


def test_a_plain_file_is_not_read_as_every_second_sample(tmp_path: Path) -> None:
    path = file_of(tmp_path, framed(Framing.PLAIN, samples(10)))
    with pytest.raises(
        DataLossError, match=r"not EXAMPLE records of framing SORT_ID; the start of the file fits PLAIN"
    ):
        read_examples(path, "sort_id")


def test_records_that_hold_something_else_are_read_without_a_guess(tmp_path: Path) -> None:
    texts = [b"one line", b"", b"another"]
    path = file_of(tmp_path, framed(Framing.PLAIN, texts))
    assert list(read_examples(path, sample=SampleFormat.PLAINTEXT)) == texts


@pytest.mark.parametrize("framing", [Framing.PLAIN, Framing.SORT_ID_KAFKA_DUMP, Framing.LAGRANGEX, Framing.TFRECORD])
def test_a_file_truncated_anywhere_returns_its_complete_records_and_then_an_error(
    tmp_path: Path, framing: Framing
) -> None:
    payloads = samples(4)
    data = framed(framing, payloads)
    ends = [len(framed(framing, payloads[: count + 1])) for count in range(4)]
    for size in range(1, len(data)):
        reader = read_examples(io.BytesIO(data[:size]), framing, sample="plaintext")
        read: list[bytes] = []
        if size in ends:
            read.extend(reader)
        else:
            with pytest.raises(DataLossError, match=r"stream.*offset \d+.*cut off.*truncated"):
                read.extend(iter(reader))
        whole = sum(end <= size for end in ends)
        assert read == payloads[:whole]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    for framing in Framing:
        assert list(read_examples(file_of(tmp_path, b""), framing)) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        read_examples(tmp_path / "nowhere")


def test_an_oversized_record_is_refused_and_the_limit_can_be_raised(tmp_path: Path) -> None:
    payloads = [b"a" * 10, b"b" * 1000, b"c" * 10]
    path = file_of(tmp_path, framed(Framing.PLAIN, payloads))
    with pytest.raises(DataLossError, match=r"offset 18: record of 1000 bytes, the limit is 100"):
        list(read_examples(path, sample="plaintext", max_record_bytes=100))
    assert list(read_examples(path, sample="plaintext", max_record_bytes=1000)) == payloads
    bad = BadRecords(limit=1)
    assert list(read_examples(path, sample="plaintext", max_record_bytes=100, bad=bad)) == [payloads[0], payloads[2]]
    assert bad.count == 1


@pytest.mark.parametrize("length", [0xFEFEFEFE, 1 << 62, (1 << 64) - 1])
def test_an_impossible_length_ends_the_file_with_everything_counted(tmp_path: Path, length: int) -> None:
    data = framed(Framing.PLAIN, samples(3)) + u64(length) + b"rest of the file"
    path = file_of(tmp_path, data)
    with pytest.raises(DataLossError, match=rf"offset {len(data) - 24}: record"):
        list(read_examples(path))
    bad = BadRecords(limit=5)
    assert list(read_examples(path, bad=bad)) == samples(3)
    assert bad.count == 2
    assert "the 24 bytes from here on cannot be split into records" in bad.first[1]


def test_more_bad_records_than_allowed_raise(tmp_path: Path) -> None:
    path = file_of(tmp_path, framed(Framing.PLAIN, [b"b" * 200] * 5))
    bad = BadRecords(limit=3)
    with pytest.raises(DataLossError, match=r"4 bad records, limit is 3"):
        list(read_examples(path, sample="plaintext", max_record_bytes=100, bad=bad))


@pytest.mark.parametrize("framing", [Framing.PLAIN, Framing.SORT_ID, Framing.LAGRANGEX, Framing.TFRECORD])
def test_reading_resumes_after_any_record(tmp_path: Path, framing: Framing) -> None:
    payloads = samples(25)
    path = file_of(tmp_path, framed(framing, payloads, b"key" if framing is Framing.SORT_ID else b""))
    for count in range(26):
        with read_examples(path, framing) as reader:
            records = iter(reader)
            read = [next(records) for _ in range(count)]
            saved = RecordPosition.from_dict(reader.position.to_dict())
            assert saved.records == count
            assert read + list(read_examples(path, framing, start=saved)) == payloads
            # The same reader goes on, too, although its buffer is ahead.
            assert read + list(reader) == payloads
        assert list(reader) == []


def test_a_position_past_the_end_is_rejected(tmp_path: Path) -> None:
    path = file_of(tmp_path, framed(Framing.PLAIN, samples(3)))
    with pytest.raises(DataLossError, match=r"offset 100000 to resume from is past the end"):
        read_examples(path, start=RecordPosition(100_000, 3))


def test_records_longer_than_a_chunk_are_read(tmp_path: Path) -> None:
    payloads = [b"a" * 2_500_000, b"", b"b" * 1_048_560, b"c" * 3, b"d" * 1_048_576]
    for framing in (Framing.PLAIN, Framing.TFRECORD):
        path = file_of(tmp_path, framed(framing, payloads))
        assert list(read_examples(path, framing, sample="plaintext")) == payloads


def test_a_payload_of_several_records_is_split_or_refused() -> None:
    payloads = samples(5)
    records = split_records(framed(Framing.LAGRANGEX, payloads), "lagrangex")
    assert list(records) == payloads
    assert [list(piece) for piece in records.split(2)] == [payloads[:2], payloads[2:4], payloads[4:]]
    assert records[1] == payloads[1]
    with pytest.raises(DataLossError, match=r"topic clicks\[3\]: offset \d+: .*is PLAIN its framing"):
        split_records(framed(Framing.PLAIN, payloads)[:-1], origin="topic clicks[3]")
    assert len(split_records(b"")) == 0


def test_a_writer_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "half"
    writer = RecordWriter(path)

    def fail() -> None:
        with writer:
            writer.write(b"x" * 2_000_000)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FailedPreconditionError, match="closed"):
        writer.write(b"x")


def test_upstream_switches_select_framings() -> None:
    assert Framing.of_options() is Framing.PLAIN
    assert Framing.of_options(has_sort_id=True) is Framing.SORT_ID
    assert Framing.of_options(has_sort_id=True, kafka_dump_prefix=True) is Framing.SORT_ID_KAFKA_PREFIX
    assert Framing.of_options(lagrangex_header=True) is Framing.LAGRANGEX
    with pytest.raises(ValueError, match="lagrangex_header excludes"):
        Framing.of_options(lagrangex_header=True, kafka_dump=True)
    with pytest.raises(ValueError, match="framing must be one of PLAIN"):
        Framing.of("length")


def test_a_url_of_fsspec_is_read_and_written() -> None:
    payloads = samples(5)
    write_examples("memory://folder/samples.gz", payloads, "tfrecord")
    assert list(read_examples("memory://folder/samples.gz", "tfrecord")) == payloads


def test_frames_of_the_test_are_the_grammar() -> None:
    assert frame(Framing.SORT_ID_KAFKA_PREFIX, b"p") == bytes(24) + u64(1) + b"p"
    assert frame(Framing.SORT_ID_KAFKA_PREFIX, b"p", b"id") == u64(2) + b"id" + u64(1) + b"p"
    assert frame(Framing.SORT_ID_KAFKA_DUMP, b"p") == bytes(16) + u64(1) + b"p"
