"""Datasets in torch's DataLoader, with worker processes: each row once, batches stay batches."""

from __future__ import annotations

import csv
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from data.pipelines import batches, plain, read_all, records
from monolith.data import (
    Batch,
    CsvDataset,
    Dataset,
    FileSet,
    GeneratedDataset,
    Ids,
    InMemoryDataset,
    KafkaConfig,
    KafkaDataset,
    Label,
    LocalFileQueue,
    MergedDataset,
    ParquetDataset,
    Parser,
    QueuedFiles,
    RecordDataset,
    RecordWriter,
    from_arrow,
)
from monolith.data.protos.example_pb2 import Example
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged

ROWS = 500


def doubled(batch: Batch) -> Batch:
    number = batch["number"]
    assert isinstance(number, torch.Tensor)
    return Batch({**batch, "number": number * 2}, num_rows=batch.num_rows)


def is_even(batch: Batch) -> Any:
    return batch["number"] % 2 == 0  # type: ignore[operator]


def csv_file(path: Path, rows: range) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "user"])
        writer.writerows((row, f"user {row}") for row in rows)


def source(kind: str, folder: Path) -> Dataset[Batch]:
    """The numbers from 0 to `ROWS`, once each."""
    if kind == "one csv":
        csv_file(folder / "x.csv", range(ROWS))
        return CsvDataset(folder / "x.csv", block_bytes=400)
    if kind == "many csv":
        for part in range(5):
            csv_file(folder / f"{part}.csv", range(part * 100, part * 100 + 100))
        return CsvDataset(FileSet(folder / "*.csv", seed=1), block_bytes=400, cycle_length=2)
    table = pa.table({"number": list(range(ROWS)), "user": [f"user {row}" for row in range(ROWS)]})
    if kind == "parquet":
        pq.write_table(table, folder / "x.parquet", row_group_size=90)
        return ParquetDataset(folder / "x.parquet", block_rows=40)
    if kind == "table":
        return from_arrow(table, block_rows=30)
    if kind == "merged":
        return MergedDataset(
            [from_arrow(table.slice(0, 200), block_rows=7), from_arrow(table.slice(200), block_rows=9)]
        )
    return batches([7] * 71 + [3])


SOURCES = ["one csv", "many csv", "parquet", "table", "merged", "memory"]


def numbers_of(loaded: Any) -> Counter[int]:
    return Counter(number for batch in loaded for number in batch["number"].tolist())


@pytest.mark.parametrize("kind", SOURCES)
def test_shares_have_every_row_once_and_positions_of_their_own(tmp_path: Path, kind: str) -> None:
    dataset = source(kind, tmp_path).batch(16)
    shares = [dataset.share(worker, 3) for worker in range(3)]
    found = Counter(number for share in shares for batch in read_all(share) for number in batch["number"])
    assert found == Counter(range(ROWS))
    for share in shares:
        everything = read_all(share)
        with share.read() as reading:
            for number in range(len(everything)):
                assert read_all(share, reading.position) == everything[number:]
                next(reading)


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda dataset: dataset.shuffle(50).batch(16).prefetch(2),
        lambda dataset: dataset.map(doubled).filter(is_even).batch(9),
        lambda dataset: dataset.batch(10).take(1000).skip(0),
        lambda dataset: dataset.cache().batch(11),
        lambda dataset: dataset.batch(8).merged_window(3),
        lambda dataset: dataset.deduplicate("number", window=10).batch(5),
    ],
)
def test_every_pipeline_can_be_shared(tmp_path: Path, pipeline: Any) -> None:
    dataset = pipeline(source("one csv", tmp_path))
    whole = Counter(number for batch in read_all(dataset) for number in batch["number"])
    found = Counter(
        number for worker in range(3) for batch in read_all(dataset.share(worker, 3)) for number in batch["number"]
    )
    assert found == whole
    assert sum(whole.values()) == ROWS


def test_an_epoch_of_shares_is_an_epoch_of_all(tmp_path: Path) -> None:
    dataset = source("many csv", tmp_path).shuffle(50).batch(16).repeat(2)
    found = Counter(n for worker in range(2) for batch in read_all(dataset.share(worker, 2)) for n in batch["number"])
    assert found == Counter(list(range(ROWS)) * 2)
    train, test = source("table", tmp_path).split([9, 1], seed=1)
    for part in (train, test):
        whole = Counter(n for batch in read_all(part) for n in batch["number"])
        assert whole == Counter(n for w in range(2) for batch in read_all(part.share(w, 2)) for n in batch["number"])


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("fork", "one csv"),
        ("fork", "parquet"),
        pytest.param("spawn", "one csv", marks=pytest.mark.slow),
        pytest.param("spawn", "parquet", marks=pytest.mark.slow),
    ],
)
def test_worker_processes_read_every_row_once_and_return_batches(tmp_path: Path, start: str, kind: str) -> None:
    dataset = source(kind, tmp_path).shuffle(64).batch(32)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=start)
    loaded = list(loader)
    assert all(isinstance(batch, Batch) and isinstance(batch["user"], Ragged) for batch in loaded)
    assert numbers_of(loaded) == Counter(range(ROWS))
    assert max(batch.num_rows for batch in loaded) == 32


@pytest.mark.slow
def test_parsed_records_go_through_worker_processes(tmp_path: Path) -> None:
    for part in range(2):
        with RecordWriter(tmp_path / f"{part}.tfrecord", "tfrecord") as writer:
            for row in range(50):
                example = Example(label=[row + 50 * part])
                example.named_feature.add(name="user").feature.fid_v2_list.value.append(row)
                writer.write(example.SerializeToString())
    parser = Parser("example", [Ids("user"), Label()])
    dataset = RecordDataset(tmp_path / "*.tfrecord", "tfrecord").batch(20).parse(parser)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    labels = sorted(label for batch in loader for label in batch["label"].reshape(-1).tolist())
    assert labels == list(range(100))


def test_without_workers_a_loader_gives_what_the_dataset_gives(tmp_path: Path) -> None:
    dataset = source("table", tmp_path).batch(64)
    loaded = list(DataLoader(dataset, batch_size=None))
    assert all(isinstance(batch, Batch) for batch in loaded)
    assert [batch["number"].tolist() for batch in loaded] == [batch["number"] for batch in read_all(dataset)]
    assert len(DataLoader(dataset, batch_size=None)) == len(dataset) == 8


def test_a_batch_size_is_rejected_with_the_option_to_use_instead(tmp_path: Path) -> None:
    dataset = source("table", tmp_path).batch(64)
    for options in ({}, {"batch_size": 4}):
        with pytest.raises(ValueError, match=r"expected batch_size=None, got [14]: a Dataset already returns batches"):
            next(iter(DataLoader(dataset, **options)))  # type: ignore[arg-type]


def test_a_queue_is_not_shared_twice_and_topics_are_shared_by_partition(tmp_path: Path) -> None:
    csv_file(tmp_path / "x.csv", range(3))
    queued = CsvDataset(QueuedFiles(LocalFileQueue([str(tmp_path / "x.csv")], num_workers=1), worker=0))
    with pytest.raises(InvalidArgumentError, match="files of a queue are shared out by the queue"):
        queued.share(0, 2)
    topic = KafkaDataset("clicks", "h:1", config=KafkaConfig(worker=1, num_workers=2)).share(2, 3)
    assert isinstance(topic, KafkaDataset)
    assert (topic.config.worker, topic.config.num_workers) == (5, 6)
    group = KafkaDataset("clicks", "h:1", config=KafkaConfig(assignment="group", group="g"))
    assert group.share(0, 2) is group
    for shared in (queued, topic, InMemoryDataset([1])):
        with pytest.raises(ValueError, match="share: expected the number of a worker"):
            shared.share(2, 2)


def test_what_is_stepped_over_is_not_made() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    assert list(GeneratedDataset(make, 10).share(1, 4)) == [1, 5, 9]
    assert made == [1, 5, 9]


def test_the_repr_of_a_dataset_describes_its_steps(tmp_path: Path) -> None:
    csv_file(tmp_path / "x.csv", range(3))
    path = str(tmp_path / "x.csv")
    dataset = CsvDataset(path).map(doubled).filter(is_even).shuffle(100, seed=3).batch(8, drop_remainder=True)
    expected = f"CsvDataset({path!r}).map(doubled).filter(is_even).shuffle(100, seed=3).batch(8, drop_remainder=True)"
    assert repr(dataset) == expected
    assert repr(dataset.prefetch(2).take(3).skip(1).repeat(4)) == f"{expected}.prefetch(2).take(3).skip(1).repeat(4)"
    parser = Parser("example", [Ids("user"), Label()])
    assert repr(records([1, 2]).parse(parser).cache()) == "InMemoryDataset(2 elements).parse(user, label).cache()"
    assert "by='number'" in repr(dataset.split([1, 1], by="number")[0])
    csv_file(tmp_path / "y.csv", range(3))
    assert repr(CsvDataset(FileSet(tmp_path / "*.csv", shard=(0, 2), seed=4))).endswith("more, shard=(0, 2), seed=4)")


@pytest.mark.parametrize(
    "make",
    [
        lambda: batches([5, 5, 2]),
        lambda: batches([5, 5, 2]).batch(4),
        lambda: batches([5, 5, 2]).batch(5, drop_remainder=True),
        lambda: batches([5, 5, 2]).shuffle(3).take(2),
        lambda: batches([5, 5, 2]).skip(2).mark_last(),
        lambda: batches([5, 5, 2]).repeat(3).prefetch(1),
        lambda: batches([5, 5, 2]).merged_window(2).cache(),
        lambda: batches([5, 5, 2]).share(1, 2),
        lambda: MergedDataset([batches([5]), batches([2, 2])]).batch(3),
        lambda: from_arrow(pa.table({"a": list(range(10))}), block_rows=3),
        lambda: from_arrow(pa.table({"a": list(range(10))}), block_rows=3, shard=(1, 2)).batch(2),
        lambda: from_arrow(pa.table({"a": list(range(10))}), block_rows=3, shard=(0, 2)).batch(2),
        lambda: GeneratedDataset(str, 5),
    ],
)
def test_a_length_that_is_known_is_the_number_of_elements(make: Any) -> None:
    dataset = make()
    with dataset.read() as reading:
        assert len(dataset) == sum(1 for _ in reading)


def test_the_rows_of_parquet_are_known_and_other_lengths_are_refused(tmp_path: Path) -> None:
    parquet = source("parquet", tmp_path)
    assert parquet.known_length().rows == ROWS
    assert len(parquet.batch(64)) == 8
    (tmp_path / "y.parquet").write_bytes(b"no parquet at all")
    for unknown in (
        ParquetDataset(tmp_path / "*.parquet").batch(2),
        source("one csv", tmp_path),
        batches([2]).map(doubled),
        batches([2]).repeat(),
    ):
        with pytest.raises(TypeError, match="how many elements there are is not known before they are read"):
            len(unknown)
        assert bool(unknown)


def test_batches_need_no_number_of_rows_and_travel() -> None:
    batch = Batch({"user": Ragged.from_lists([[1], []]), "label": torch.ones(2, 1), "name": [b"a", b"b"]})
    assert (batch.num_rows, Batch({}).num_rows) == (2, 0)
    deep = Ragged.from_lists([[[1, 2], []], [[3]]])
    wide = torch.arange(200_000).reshape(2, -1)[:, ::2]  # not contiguous, and too large for a message
    many: list[dict[str, Any]] = [{}, {"deep": deep}, {"wide": wide, "flag": torch.tensor([True, False])}]
    for columns in many:
        full = Batch({**batch, **columns, "none": torch.empty(2, 0)}, num_rows=2)
        again = pickle.loads(pickle.dumps(full))  # noqa: S301 - just written
        assert plain(again) == plain(full)
        assert [column.dtype for column in again.values() if not isinstance(column, list)] == [
            column.dtype for column in full.values() if not isinstance(column, list)
        ]
    weights = torch.ones(2, requires_grad=True)
    assert pickle.loads(pickle.dumps(Batch({"w": weights})))["w"].requires_grad  # noqa: S301 - just written
    with pytest.raises(ValueError, match="column 'label' must have 1 rows, got 2"):
        Batch({"user": torch.ones(1), "label": torch.ones(2)})
