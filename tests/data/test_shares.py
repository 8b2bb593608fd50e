"""Workers that share a dataset read every row once, whatever it is read from, and resume in the middle."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.pipelines import batch_of, batches, plain, read_all
from monolith.data import (
    BadRecords,
    Batch,
    CsvDataset,
    Dataset,
    FileSet,
    GeneratedDataset,
    InMemoryDataset,
    JsonLinesDataset,
    KafkaConfig,
    KafkaDataset,
    LocalFileQueue,
    MergedDataset,
    ParquetDataset,
    QueuedFiles,
    RecordDataset,
    RecordWriter,
    from_arrow,
)
from monolith.data.dataset import WorkerShare
from monolith.data.protos.example_pb2 import Example
from monolith.errors import DataLossError, InvalidArgumentError


def _text(number: int) -> str:
    return f"text {number} " + "x" * (number * 37 % 90)


def _csv(path: Path, numbers: range, *, names: bool = True, end: str = "\n", last_end: bool = True) -> None:
    lines = ["number,text"] if names else []
    lines += [f"{number},{_text(number)}" for number in numbers]
    path.write_bytes((end.join(lines) + (end if last_end and lines else "")).encode())


def _quoted_csv(path: Path, numbers: range) -> None:
    lines = [f'{number},"two\nlines, {_text(number)}\n"' for number in numbers]
    path.write_text("\n".join(["number,text", *lines]) + "\n")


def _files(folder: Path, rows: list[int], name: str, write: Callable[[Path, range], None]) -> list[str]:
    """A file for each number of rows; together they have the numbers from 0 on, once each."""
    first, paths = 0, []
    for number, count in enumerate(rows):
        paths.append(str(folder / f"{number}-{name}"))
        write(Path(paths[-1]), range(first, first + count))
        first += count
    return paths


def _lines(path: Path, numbers: range) -> None:
    path.write_text("".join(json.dumps({"number": n, "text": _text(n)}) + "\n" for n in numbers))


def _compressed(path: Path, numbers: range) -> None:
    _csv(path, numbers)
    path.write_bytes(gzip.compress(path.read_bytes()))


def _parquet(path: Path, numbers: range, group: int) -> None:
    pq.write_table(_table(numbers), path, row_group_size=group)


def _table(numbers: range) -> pa.Table:
    return pa.table({"number": pa.array(numbers, pa.int64()), "text": [_text(n) for n in numbers]})


def _records(path: Path, numbers: range) -> None:
    with RecordWriter(path, "tfrecord") as writer:
        for number in numbers:
            writer.write(Example(line_id={"uid": number}).SerializeToString())


def _uids(records: Any) -> Batch:
    uids = [Example.FromString(each).line_id.uid for each in records]
    return Batch({"number": torch.tensor(uids)}, num_rows=len(uids))


COLUMNS = {"number": "int", "text": "ids"}


def make(kind: str, folder: Path, rows: list[int], block: int) -> Dataset[Any]:  # noqa: C901, PLR0911 - one for each kind
    """The numbers from 0 on, so many in each file or element, once each."""
    match kind:
        case "csv":
            return CsvDataset(_files(folder, rows, "x.csv", _csv), COLUMNS, block_bytes=block)
        case "csv crlf without a last line end":
            write = lambda path, numbers: _csv(path, numbers, end="\r\n", last_end=False)  # noqa: E731
            return CsvDataset(_files(folder, rows, "x.csv", write), COLUMNS, block_bytes=block)
        case "csv without names":
            write = lambda path, numbers: _csv(path, numbers, names=False)  # noqa: E731
            paths = _files(folder, rows, "x.csv", write)
            return CsvDataset(FileSet(paths, seed=block), COLUMNS, names=["number", "text"], block_bytes=block)
        case "csv with line ends in cells":
            paths = _files(folder, rows, "x.csv", _quoted_csv)
            return CsvDataset(paths, COLUMNS, block_bytes=block, newlines_in_values=True)
        case "csv.gz":
            return CsvDataset(_files(folder, rows, "x.csv.gz", _compressed), COLUMNS, block_bytes=block)
        case "json lines":
            paths = _files(folder, rows, "x.jsonl", _lines)
            return JsonLinesDataset(paths, COLUMNS, block_bytes=block, cycle_length=2)
        case "parquet":
            group = 1 + block % 40
            paths = _files(folder, rows, "x.parquet", lambda path, numbers: _parquet(path, numbers, group))
            return ParquetDataset(paths, block_rows=1 + block % 17)
        case "records":
            paths = _files(folder, rows, "x.tfrecord", _records)
            dataset = RecordDataset(paths, "tfrecord", bad=BadRecords(limit=0))
            return dataset.map(_uids)
        case "table":
            return from_arrow(_table(range(sum(rows))), block_rows=1 + block % 17)
        case "memory":
            return batches(rows)
        case "generated":
            return GeneratedDataset(lambda number: batch_of(number, 1), sum(rows))
        case _:
            halves = [_table(range(sum(rows)))[: sum(rows) // 3], _table(range(sum(rows)))[sum(rows) // 3 :]]
            return MergedDataset([from_arrow(half, block_rows=1 + block % 17) for half in halves], [2, 1])


KINDS = [
    "csv",
    "csv crlf without a last line end",
    "csv without names",
    "csv with line ends in cells",
    "csv.gz",
    "json lines",
    "parquet",
    "records",
    "table",
    "memory",
    "generated",
    "merged",
]


def numbers_of(elements: list[Any]) -> list[int]:
    return [number for batch in elements for number in batch["number"]]


def read_in_two(dataset: Dataset[Any], stop: int) -> list[int]:
    """All rows, with a restart after some batches."""
    with dataset.read() as reading:
        before = [plain(batch) for _, batch in zip(range(stop), reading, strict=False)]
        position = reading.position
    return numbers_of([*before, *read_all(dataset, position)])


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] if kind.startswith("csv") and kind != "csv" else [])
        for kind in KINDS
    ],
)
@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    count=st.integers(1, 6),
    block=st.integers(1, 3000),
    size=st.integers(1, 30),
    stop=st.integers(0, 6),
)
def test_shares_have_every_row_once(kind: str, rows: list[int], count: int, block: int, size: int, stop: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = make(kind, Path(folder), rows, block)
        every = Counter(range(sum(rows)))
        for built in (whole, whole.batch(size)):
            assert Counter(numbers_of(read_all(built))) == every
            shares = [built.for_worker(WorkerShare(index, count)) for index in range(count)]
            assert sum((Counter(read_in_two(share, stop)) for share in shares), Counter()) == every
        nested = [whole.share(index, count).share(again, 2) for index in range(count) for again in range(2)]
        assert sum((Counter(numbers_of(read_all(share))) for share in nested), Counter()) == every


@pytest.mark.parametrize("kind", ["csv", "json lines", "parquet", "table", "memory", "csv with line ends in cells"])
def test_a_position_of_one_share_is_refused_by_another(tmp_path: Path, kind: str) -> None:
    dataset = make(kind, tmp_path, [50], 200).batch(4)
    with dataset.share(0, 2).read() as reading:
        next(reading)
        position = reading.position
    for other in (dataset, dataset.share(1, 2), dataset.share(0, 3)):
        with pytest.raises(InvalidArgumentError, match=r"saved (with|by)"):
            other.read(position)
    with dataset.read() as reading:
        next(reading)
        position = reading.position
    with pytest.raises(InvalidArgumentError, match=r"saved (with|by)"):
        dataset.share(0, 2).read(position)


@pytest.mark.parametrize(
    ("kind", "count"), [("csv", 7), ("json lines", 3), ("parquet", 3), ("table", 5), ("memory", 4)]
)
def test_the_shares_of_one_file_are_alike_in_size(tmp_path: Path, kind: str, count: int) -> None:
    dataset = make(kind, tmp_path, [600], 1 << 20)
    found = [len(numbers_of(read_all(dataset.share(index, count)))) for index in range(count)]
    assert sum(found) == 600
    assert max(found) - min(found) <= 40  # a row group of Parquet


def test_a_share_of_a_file_reads_its_own_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.csv"
    _csv(path, range(200_000))
    dataset = CsvDataset(path, COLUMNS, block_bytes=1 << 16)
    assert dataset.schema.names == ["number", "text"]  # which reads the head
    read: list[int] = []
    opened = FileSet.open

    def count_bytes(self: FileSet, path: str) -> Any:
        file: Any = opened(self, path)
        inner = file.readinto

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def readinto(self, buffer: Any) -> int:
                read.append(inner(buffer))
                return read[-1]

        return Counting()

    monkeypatch.setattr(FileSet, "open", count_bytes)
    with dataset.share(7, 8).read() as reading:
        for _ in range(3):
            next(reading)
        position = reading.position
    list(dataset.share(7, 8).read(position))
    assert sum(read) < path.stat().st_size / 4


def test_a_file_that_has_grown_is_not_resharded_mid_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    _csv(path, range(100))
    dataset = CsvDataset(path, COLUMNS, block_bytes=300).share(0, 2)
    with dataset.read() as reading:
        next(reading)
        position = reading.position
    with path.open("a") as file:
        file.write("100,more\n")
    with pytest.raises(InvalidArgumentError, match="bytes when 2 workers shared it"):
        list(dataset.read(position))


def test_a_bad_line_of_a_share_is_named_by_where_its_lines_begin(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    _csv(path, range(100))
    with path.open("a") as file:
        file.write("not a number,more\n")
    assert len(numbers_of(read_all(CsvDataset(path, COLUMNS).share(0, 2)))) == pytest.approx(50, abs=5)
    with pytest.raises(DataLossError, match=r"line \d+ from byte \d+ on"):
        read_all(CsvDataset(path, COLUMNS).share(1, 2))


def test_what_is_a_share_already_is_not_shared_again(tmp_path: Path) -> None:
    paths = _files(tmp_path, [10, 10], "x.csv", _csv)
    worker = WorkerShare(1, 2)
    queue = QueuedFiles(LocalFileQueue(paths, num_workers=2), worker=1)
    shares: list[Dataset[Any]] = [
        CsvDataset(FileSet(paths, shard=(1, 2))),
        CsvDataset(queue),
        CsvDataset(paths).share(1, 2),
        CsvDataset(paths[0]).share(1, 2),
        from_arrow(_table(range(10)), shard=(1, 2)),
        batches([10]).share(1, 2),
        GeneratedDataset(int, 10).share(1, 2),
        KafkaDataset("clicks", "localhost:9", config=KafkaConfig(worker=1, num_workers=2)),
        KafkaDataset("clicks", "localhost:9", config=KafkaConfig(assignment="group", group="g")),
    ]
    for share in shares:
        assert share.is_share
        assert share.for_worker(worker) is share
        assert all(each.is_share for each in share.map(lambda each: each).take(3).for_worker(worker).sources())
    both = MergedDataset([shares[0], CsvDataset(paths[0])])
    assert not both.is_share
    assert sorted(numbers_of(read_all(both.for_worker(worker)))) == [*range(6, 20)]  # half of the bytes of the first
    with pytest.raises(InvalidArgumentError, match="some of what it reads is the share of one worker"):
        both.take(3).for_worker(worker)


def test_a_dataset_that_does_not_define_its_sharding_is_rejected() -> None:
    class Own(Dataset[int]):
        def read(self, position: bytes | None = None) -> Any:
            return GeneratedDataset(int, 4).read(position)

    for dataset in (Own(), Own().batch(2), Own().take(3), MergedDataset([batches([1]), Own()])):
        with pytest.raises(
            InvalidArgumentError, match=r"Own does not define how 2 workers share it.*\*self.ctx.shares"
        ):
            dataset.for_worker(WorkerShare(0, 2))
    assert [read_all(Own().share(index, 2)) for index in range(2)] == [[0, 2], [1, 3]]


def test_splits_by_a_value_and_marks_are_made_of_each_share(tmp_path: Path) -> None:
    dataset = make("csv", tmp_path, [90], 200)
    train, test = dataset.split([2, 1], by="number")
    found = [numbers_of(read_all(part.share(index, 2))) for part in (train, test) for index in range(2)]
    assert Counter(number for each in found for number in each) == Counter(range(90))
    assert "part" in json.dumps(json.loads(train.share(0, 2).read().position))
    marks = [[is_last for _, is_last in read_all(dataset.batch(10).mark_last().share(index, 2))] for index in range(2)]
    assert all(each == [False] * (len(each) - 1) + [True] for each in marks)


def test_files_come_from_a_queue_where_workers_have_one(tmp_path: Path) -> None:
    paths = _files(tmp_path, [5, 5, 5], "x.csv", _csv)
    queue = LocalFileQueue(paths, num_workers=2)
    dataset = CsvDataset(paths).batch(4)
    shares = [
        dataset.for_worker(WorkerShare(index, 2, lambda _, index=index: QueuedFiles(queue, worker=index)))  # type: ignore[misc]
        for index in range(2)
    ]
    assert numbers_of(read_all(shares[1])) == list(range(15))
    assert read_all(shares[0]) == []
    assert read_all(InMemoryDataset([1, 2, 3]).for_worker(WorkerShare(1, 2, lambda files: files))) == [2]  # no files
