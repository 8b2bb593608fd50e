"""Files of records as a dataset: which files, in which order, from where on, and what damage says."""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.framed_files import framed, samples
from monolith.data import (
    BadRecords,
    Compression,
    Dataset,
    FileSet,
    Framing,
    Ids,
    Label,
    Parser,
    RecordDataset,
    Records,
    expand_ranges,
    partition_patterns,
)
from monolith.data.records import reader as record_reader
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of some records, so that small files have many."""
    monkeypatch.setattr(record_reader, "_CHUNK", 256)


def write_files(folder: Path, counts: list[int], framing: Framing = Framing.TFRECORD) -> list[list[bytes]]:
    """Files whose records all differ."""
    everything = iter(samples(sum(counts)))
    contents = [list(itertools.islice(everything, count)) for count in counts]
    for number, records in enumerate(contents):
        (folder / f"part-{number:03}").write_bytes(framed(framing, records))
    return contents


def records_of(dataset: Dataset[Records], position: bytes | None = None) -> list[bytes]:
    with dataset.read(position) as reading:
        return [record for block in reading for record in block]


@pytest.mark.parametrize("framing", list(Framing))
def test_every_framing_is_read(tmp_path: Path, framing: Framing) -> None:
    contents = write_files(tmp_path, [30, 1, 20], framing)
    assert records_of(RecordDataset(tmp_path / "part-*", framing)) == [record for file in contents for record in file]


def test_workers_share_the_files_and_miss_none(tmp_path: Path) -> None:
    contents = write_files(tmp_path, [3] * 10)
    for seed in (None, 7):
        parts = [
            records_of(RecordDataset(FileSet(tmp_path / "*", shard=(index, 3), seed=seed), "tfrecord"))
            for index in range(3)
        ]
        assert [len(part) for part in parts] == [12, 9, 9]
        assert sorted(itertools.chain(*parts)) == sorted(itertools.chain(*contents))


def test_a_seed_reshuffles_the_files_each_epoch(tmp_path: Path) -> None:
    write_files(tmp_path, [1] * 20)
    files = FileSet(tmp_path / "*", seed=3)
    assert files.order(0) != files.order(1) != list(files.files)
    assert sorted(files.order(1)) == list(files.files)
    assert files.order(0) == FileSet(tmp_path / "*", seed=3).order(0)
    passes = [records_of(RecordDataset(files, "tfrecord").for_epoch(epoch)) for epoch in range(2)]
    both = [record for block in RecordDataset(files, "tfrecord").repeat(2) for record in block]
    assert both == passes[0] + passes[1]


@pytest.mark.usefixtures("small_chunks", "nothing_left_behind")
def test_files_are_read_round_robin(tmp_path: Path) -> None:
    contents = write_files(tmp_path, [60, 60, 60])
    dataset = RecordDataset(tmp_path / "*", "tfrecord", cycle_length=2)
    blocks = list(dataset)
    origins = [block.origin[-9:-1].strip("'") for block in blocks]
    assert origins[:4] == ["part-000", "part-001"] * 2
    assert {"part-000", "part-001"} & set(origins[-3:]) != {"part-000", "part-001"}
    assert sorted(record for block in blocks for record in block) == sorted(itertools.chain(*contents))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reading_resumes_from_any_block(tmp_path: Path, suffix: str) -> None:
    write_files(tmp_path, [40, 0, 25, 31])
    if suffix:
        for path in list(tmp_path.iterdir()):
            path.with_name(path.name + suffix).write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    dataset = RecordDataset(FileSet(tmp_path / "*", seed=1), "tfrecord", cycle_length=3)
    whole = [list(block) for block in dataset]
    with dataset.read() as reading:
        positions = [reading.position] + [reading.position for _ in reading]
    for number, position in enumerate(positions):
        with dataset.read(position) as reading:
            assert [list(block) for block in reading] == whole[number:]


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(1, 300), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_blocks_are_cut_alike_wherever_reading_began(sizes: list[int], chunk: int, batch: int) -> None:
    records = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    system = fsspec.filesystem("memory")
    system.pipe("/blocks", framed(Framing.TFRECORD, records))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_reader, "_CHUNK", chunk)
        dataset = RecordDataset("memory://blocks", "tfrecord", sample="plaintext")
        for pipeline in (dataset, dataset.batch(batch), dataset.shuffle(batch, seed=1)):
            whole = [list(block) for block in pipeline]
            with pipeline.read() as reading:
                positions = [reading.position] + [reading.position for _ in reading]
            for number in {0, len(whole) // 3, len(whole) // 2, len(whole)}:
                with pipeline.read(positions[number]) as reading:
                    assert [list(block) for block in reading] == whole[number:]
    system.store.clear()


def test_batches_across_files_are_parsed(tmp_path: Path) -> None:
    write_files(tmp_path, [30, 45])
    parser = Parser("example", [Ids("user"), Label()])
    batches = list(RecordDataset(tmp_path / "*", "tfrecord").batch(32).parse(parser).prefetch(2))
    assert [batch.num_rows for batch in batches] == [32, 32, 11]


def test_a_position_of_other_files_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, [5, 5])
    with RecordDataset(tmp_path / "*", "tfrecord").read() as reading:
        next(reading)
        position = reading.position
    with pytest.raises(InvalidArgumentError, match="saved with cycle_length 1, this dataset has 2"):
        RecordDataset(tmp_path / "*", "tfrecord", cycle_length=2).read(position)
    (tmp_path / "part-001").rename(tmp_path / "part-002")
    with pytest.raises(InvalidArgumentError, match="saved with digest"):
        RecordDataset(tmp_path / "*", "tfrecord").read(position)
    (tmp_path / "part-003").write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="saved with num_files 2, this dataset has 3"):
        RecordDataset(tmp_path / "*", "tfrecord").read(position)


def test_a_file_that_was_cut_after_the_position_was_saved_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, [5])
    with RecordDataset(tmp_path / "*", "tfrecord").read() as reading:
        next(reading)
        position = reading.position
    path = tmp_path / "part-000"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataLossError, match=r"part-000'.*is past the end, 50"):
        records_of(RecordDataset(tmp_path / "*", "tfrecord"), position)


class TestBadFiles:
    """Each kind of damage in the second of three files."""

    @pytest.fixture
    def good(self, tmp_path: Path) -> list[list[bytes]]:
        return write_files(tmp_path, [10, 10, 10])

    def test_truncated(self, tmp_path: Path, good: list[list[bytes]]) -> None:
        path = tmp_path / "part-001"
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(DataLossError, match=r"part-001': offset \d+: .*truncated"):
            records_of(RecordDataset(tmp_path / "*", "tfrecord"))
        bad = BadRecords(limit=1)
        read = records_of(RecordDataset(tmp_path / "*", "tfrecord", bad=bad))
        assert read == good[0] + good[1][:-1] + good[2]
        assert bad.count == 1

    def test_bad_checksum(self, tmp_path: Path, good: list[list[bytes]]) -> None:
        path = tmp_path / "part-001"
        data = bytearray(path.read_bytes())
        data[-6] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataLossError, match=r"part-001': offset \d+: .*checksum"):
            records_of(RecordDataset(tmp_path / "*", "tfrecord"))
        bad = BadRecords(limit=1)
        assert records_of(RecordDataset(tmp_path / "*", "tfrecord", bad=bad)) == good[0] + good[1][:-1] + good[2]

    def test_wrong_framing(self, tmp_path: Path, good: list[list[bytes]]) -> None:
        (tmp_path / "part-001").write_bytes(framed(Framing.SORT_ID, good[1]))
        with pytest.raises(DataLossError, match=r"part-001': offset 0: .*SORT_ID"):
            records_of(RecordDataset(tmp_path / "*", "tfrecord"))

    def test_oversized(self, tmp_path: Path, good: list[list[bytes]]) -> None:
        path = tmp_path / "part-001"
        path.write_bytes(framed(Framing.TFRECORD, [good[1][0], b"x" * 5000, good[1][1]]))
        with pytest.raises(DataLossError, match=r"part-001': offset \d+: .*5000"):
            records_of(RecordDataset(tmp_path / "*", "tfrecord", max_record_bytes=4000))
        bad = BadRecords(limit=1)
        dataset = RecordDataset(tmp_path / "*", "tfrecord", max_record_bytes=4000, bad=bad)
        assert records_of(dataset) == good[0] + good[1][:2] + good[2]

    def test_compressed_otherwise(self, tmp_path: Path, good: list[list[bytes]]) -> None:
        with pytest.raises(DataLossError, match="part-000'"):
            records_of(RecordDataset(tmp_path / "*", "tfrecord", compression=Compression.GZIP))
        with pytest.raises(ValueError, match=r"compression must be one of .*got 'lz4'"):
            RecordDataset(tmp_path / "*", "tfrecord", compression="lz4")

    def test_damage_is_not_the_end_when_it_is_read_on(self, tmp_path: Path, good: list[list[bytes]]) -> None:
        path = tmp_path / "part-001"
        path.write_bytes(path.read_bytes()[:-3])
        with RecordDataset(tmp_path / "*", "tfrecord").read() as reading:
            next(reading)
            next(reading)
            position = reading.position
            for _ in range(2):
                with pytest.raises(DataLossError, match="part-001"):
                    next(reading)
            assert reading.position == position

    @pytest.mark.usefixtures("nothing_left_behind")
    def test_a_deleted_file_raises_not_found(self, tmp_path: Path, good: list[list[bytes]]) -> None:
        dataset = RecordDataset(tmp_path / "*", "tfrecord")
        (tmp_path / "part-001").unlink()
        with dataset.read() as reading:
            next(reading)
            with pytest.raises(NotFoundError, match="part-001': there is no such file"):
                next(reading)


def test_nothing_that_matches_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file matches .*absent-"):
        FileSet(tmp_path / "absent-*")
    with pytest.raises(NotFoundError, match="an empty list of paths"):
        FileSet([])
    with pytest.raises(ValueError, match="shard must be"):
        FileSet(tmp_path, shard=(2, 2))


def test_a_worker_without_a_file_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_files(tmp_path, [3])
    assert records_of(RecordDataset(FileSet(tmp_path / "*", shard=(1, 2)), "tfrecord")) == []
    assert "worker 1 of 2 has nothing to read: there are 1 files" in caplog.text


def test_a_pattern_without_a_match_is_reported_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_files(tmp_path, [3])
    assert len(FileSet([tmp_path / "part-*", tmp_path / "other-*"]).files) == 1
    assert "no file matches" in caplog.text


def test_folders_are_no_files_and_a_file_that_matches_twice_is_one(tmp_path: Path) -> None:
    write_files(tmp_path, [3, 3])
    (tmp_path / "part-folder").mkdir()
    assert len(FileSet([tmp_path / "part-*", tmp_path / "part-000"]).files) == 2
    assert FileSet(f"{os.fspath(tmp_path)}/**/part-0*").files == FileSet(tmp_path / "part-0*").files


def test_a_name_with_the_characters_of_a_pattern_is_meant_as_it_stands(tmp_path: Path) -> None:
    write_files(tmp_path, [2])
    odd = (tmp_path / "part-000").rename(tmp_path / "part[1]*")
    assert FileSet(odd).files == (os.fspath(odd),)


def test_partitions_by_day_and_hour() -> None:
    days = partition_patterns("s3://bucket/clicks/", start_date="20231230", end_date="20240102", wildcard="*.tfrecord")
    assert days == [f"s3://bucket/clicks/{day}/*.tfrecord" for day in ("20231230", "20231231", "20240101")]
    hours = partition_patterns(
        "/d", start_date="20240228", start_hour=22, end_date="20240229", end_hour=2, is_hourly=True, wildcard="/*"
    )
    assert hours == ["/d/20240228/22/*", "/d/20240228/23/*", "/d/20240229/00/*", "/d/20240229/01/*"]
    assert partition_patterns("/d", start_date="20240101", end_date="20240101") == []
    assert partition_patterns("/d", start_date="29990101") == []
    with pytest.raises(ValueError, match="need is_hourly=True"):
        partition_patterns("/d", start_date="20240101", end_date="20240102", end_hour=3)
    with pytest.raises(ValueError, match="written yyyymmdd, got '2024-01-01'"):
        partition_patterns("/d", start_date="2024-01-01")
    with pytest.raises(ValueError, match="start_hour must be from 0 to 24, got 25"):
        partition_patterns("/d", start_date="20240101", start_hour=25, is_hourly=True)


def test_ranges_in_patterns() -> None:
    assert expand_ranges("a/{INT(8,10)}/x") == ["a/8/x", "a/9/x", "a/10/x"]
    assert expand_ranges("{DATE(2024022823,2024022900)}*") == ["2024022823*", "2024022900*"]
    assert len(expand_ranges("{DATE(20240101,20240110)}/{INT(0,3)}/{INT(1,2)}")) == 80
    assert expand_ranges("plain[ab]{x}") == ["plain[ab]{x}"]
    for wrong in ("{DATE(20240101)}", "{INT(a,b)}", "{INT(3,1)}", "{DATE(20240101,2024010100)}", "{DATE(2024,2025)}"):
        with pytest.raises(ValueError, match=r"pattern|date"):
            expand_ranges(wrong)
