"""``monolith data`` on files of columns: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from data.pipelines import plain
from monolith import Embeddings, Slot, cli
from monolith.data import CsvDataset, Ids, Label, ParquetDataset, Parser, RecordDataset, RecordWriter
from monolith.data.protos.example_pb2 import Example
from monolith.data.protos.tf_example_pb2 import Example as TfExample

CSV = "user,age,genres,label,price\nann,31,Action|Comedy,1,0.5\nbob,,Drama,0,2\n"


def peeked(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["data", "peek", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.parquet"])
def test_peek_shows_the_types_that_are_found(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    rows = [
        {"user": "ann", "age": 31, "price": 0.5, "tags": ["x"]},
        {"user": "bob", "age": 4, "price": 2.5, "tags": []},
    ]
    if name == "x.parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name == "x.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = "," if name == "x.csv" else "\t"
        path.write_text(
            "".join(separator.join(line) + "\n" for line in [["user", "age", "price"], ["ann", "31", "0.5"]])
        )
    lines = [line.split(maxsplit=2) for line in peeked(capsys, str(path), "-n", "1").splitlines()]
    assert ["column", "type", "in a batch"] in lines
    assert ["user", "string", "ids, by a hash of the text"] in lines
    assert ["age", "int64", "int64"] in lines
    assert ["price", "float" if name in {"x.csv", "x.tsv"} else "double", "float32"] in lines
    assert ["age", "1", "int64: 31"] in lines
    if name in {"x.jsonl", "x.parquet"}:
        assert any(line[:1] == ["tags"] and line[-1].endswith("lists of ids, by a hash of the text") for line in lines)


def test_peek_prints_a_label_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text(CSV)
    text = peeked(capsys, str(path), "-n", "1")
    assert "label   1\n" in text
    assert "none" not in text
    example = Example()
    example.named_feature.add(name="label").feature.float_list.value.append(0.5)
    with RecordWriter(tmp_path / "feature", "tfrecord") as writer:
        writer.write(example.SerializeToString())
    assert peeked(capsys, str(tmp_path / "feature")).splitlines()[1:] == ["  label  1 float: 0.5"]
    record = TfExample()
    record.features.feature["user"].int64_list.value.append(7)
    with RecordWriter(tmp_path / "unlabelled", "tfrecord") as writer:
        writer.write(record.SerializeToString())
    assert "label  none" in peeked(capsys, str(tmp_path / "unlabelled"))


def test_a_skipped_column_is_shown_as_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"s": [{"a": 1}], "n": [1]}), tmp_path / "x.parquet")
    assert "skipped: it has no place in a batch" in peeked(capsys, str(tmp_path / "x.parquet"), "-n", "0")


def test_a_csv_file_becomes_parquet_that_gives_the_same_batch(tmp_path: Path) -> None:
    source, out = tmp_path / "x.csv", tmp_path / "x.parquet"
    source.write_text(CSV)
    assert cli.main(["data", "convert", str(source), "--out", str(out)]) == 0
    columns: list[Any] = ["user", "age", Ids("genres", separator="|"), Label("label")]
    (csv,), (parquet,) = CsvDataset(source, columns), ParquetDataset(out, columns)
    assert plain(parquet) == plain(csv)


def test_a_csv_file_becomes_records(tmp_path: Path) -> None:
    source, out = tmp_path / "x.csv", tmp_path / "x.tfrecord"
    source.write_text(CSV)
    assert cli.main(["data", "convert", str(source), "--out", str(out), "--to", "tf_example"]) == 0
    (batch,) = RecordDataset(out, "tfrecord", sample="tf_example").parse(Parser("tf_example", [Label("label")]))
    assert plain(batch) == {"label": [[1.0], [0.0]]}


def test_stats_count_the_columns_of_a_csv_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.csv").write_text(CSV)
    assert cli.main(["data", "stats", str(tmp_path / "x.csv"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["labels"][0]["positive_rate"] == 0.5
    assert report["features"]["user"]["unique"] == 2


@pytest.mark.parametrize("name", ["clicks.parquet", "clicks.pq", "clicks.tfrecord.gz", "clicks", "clicks.0007"])
def test_the_format_follows_the_name(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert cli.main(["data", "generate", "--examples", "20", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"PAR1") == (name in {"clicks.parquet", "clicks.pq"})


@pytest.mark.parametrize("command", [["generate", "--examples", "3"], ["convert", "x.csv"]])
@pytest.mark.parametrize("name", ["clicks.csv", "clicks.feather", "clicks.json.gz"])
def test_a_name_of_no_format_is_refused_with_those_that_are(
    tmp_path: Path, command: list[str], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text(CSV)
    assert cli.main(["data", *command, "--out", name]) == 1
    error = capsys.readouterr().err
    assert f"'{Path(name.removesuffix('.gz')).suffix}'; use one of .parquet (parquet), " in error
    assert not Path(name).exists()
    assert cli.main(["data", *command, "--out", name, "--to", "example"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--out", "kafka://h:1/t"], "a topic of Kafka is no file; read it by KafkaDataset"),
        (["peek", "zip://x.zip"], "files are not read out of archives"),
        (["peek", "s4://bucket/x"], "fsspec has no file system s4://; it supports file://, s3://"),
    ],
)
def test_errors_for_urls_that_are_no_files_suggest_the_fix(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["clicks.tfrecord", "clicks.parquet"])
def test_generated_clicks_train(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert cli.main(["data", "generate", "--examples", "300", "--out", str(out)]) == 0
    slots = ("user", "item", "tags", "context")
    if name.endswith(".parquet"):
        dataset = ParquetDataset(out, num_labels=1).batch(100)
    else:
        parser = Parser("example", [*map(Ids, slots), Label()])
        dataset = RecordDataset(out, "tfrecord").batch(100).parse(parser)
    model = Embeddings({slot: Slot(4) for slot in slots})
    for batch in dataset:
        logits = torch.cat(list(model({slot: batch[slot] for slot in slots}).values()), 1).sum(1)
        loss: Any = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["label"].reshape(-1))
        loss.backward()
        model.step()
    assert model.num_rows > 300
