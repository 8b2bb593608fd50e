"""``monolith data`` on real files and topics: what it prints, writes and counts, and what it says when it cannot."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.framed_files import framed, samples
from kafka_cluster import KafkaCluster
from monolith import cli
from monolith.cli._data import describing
from monolith.cli._data.opening import examples_of, fits
from monolith.cli._data.statistics import UniqueCounter, table_bytes_per_id
from monolith.data import (
    Floats,
    Framing,
    Ids,
    Ints,
    Label,
    LineIdField,
    Parser,
    RecordWriter,
    SampleFormat,
    read_examples,
)
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.tables import HashTable, Segment, TableConfig, row_optimizers
from monolith.tensors import Ragged

PROGRAM = "import sys; from monolith.cli import main; sys.exit(main())"


def write(path: Path, records: list[bytes], framing: str = "tfrecord") -> Path:
    with RecordWriter(path, framing) as writer:
        for record in records:
            writer.write(record)
    return path


def read(path: Path, framing: str = "tfrecord") -> list[bytes]:
    return list(read_examples(path, framing))


def rich_example(number: int = 0) -> Example:
    """Every kind of list, ids and line ids at the ends of their range."""
    example = Example(label=[1.0, -0.5], instance_weight=2.5)
    example.line_id.uid = (1 << 64) - 1 - number
    example.line_id.req_time = 1_700_000_000 + number
    example.line_id.actions.extend([1, 2])
    example.line_id.sample_rate = 0.25
    example.line_id.user_id = "ü"
    example.line_id.is_draw = True
    lists = {
        "fid_v1_list": [(1 << 64) - 1, 0, 3],
        "fid_v2_list": [(1 << 48) + number],
        "float_list": [0.5, -1.0],
        "double_list": [1e300],
        "int64_list": [-(1 << 63), (1 << 63) - 1],
        "bytes_list": [b"\xff\x00", b""],
    }
    for place, (kind, values) in enumerate(lists.items()):
        getattr(example.named_feature.add(name=f"f_{kind}", id=place).feature, kind).value.extend(values)
    example.named_feature.add(name="empty").feature.fid_v2_list.SetInParent()
    return example


def features_of(example: Example) -> dict[str, bytes]:
    return {each.name: each.feature.SerializeToString(deterministic=True) for each in example.named_feature}


def assert_same(one: Example, other: Example) -> None:
    """But for the order and the numbers of the features, which not every format keeps."""
    assert features_of(one) == features_of(other)
    assert list(one.label) == list(other.label)
    assert one.line_id == other.line_id
    assert one.instance_weight == other.instance_weight


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".snappy"])
def test_every_framing_and_compression_is_found_out_and_converted(
    tmp_path: Path, framing: Framing, ending: str
) -> None:
    records = samples(40)
    content = framed(framing, records, word=3)
    source, out = tmp_path / f"old{ending}", tmp_path / "new.tfrecord"
    compress(source, content)
    assert cli.main(["data", "convert", str(source), "--out", str(out)]) == 0
    assert read(out) == records


def compress(path: Path, content: bytes) -> None:
    """Through a file of one record without its framing, whose writer compresses by the name of the file."""
    if not path.suffix:
        path.write_bytes(content)
        return
    with RecordWriter(path, "plain") as writer:
        writer._pending += content


@pytest.mark.parametrize("out_framing", ["plain", "sort_id", "tfrecord"])
@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".snappy", ".zlib"])
def test_records_are_written_in_every_framing_and_compression(tmp_path: Path, out_framing: str, ending: str) -> None:
    source = write(tmp_path / "old", samples(20))
    out = tmp_path / f"new{ending}"
    arguments = ["data", "convert", str(source), "--out", str(out), "--out-framing", out_framing]
    assert cli.main(arguments) == 0
    assert read(out, out_framing) == samples(20)
    assert list(tmp_path.iterdir()) == [source, out] or set(tmp_path.iterdir()) == {source, out}


@pytest.mark.parametrize("between", ["example_batch", "parquet"])
def test_examples_round_trip_through_other_formats(tmp_path: Path, between: str) -> None:
    examples = [rich_example(number) for number in range(10)] + [
        Example(label=[0.0]),
        *map(Example.FromString, samples(9)),
    ]
    source = write(tmp_path / "old", [each.SerializeToString() for each in examples])
    middle, out = tmp_path / "middle", tmp_path / "new"
    to_middle = ["--out", str(middle), "--to", between, "--batch-size", "4"]
    assert cli.main(["data", "convert", str(source), *to_middle]) == 0
    assert cli.main(["data", "convert", str(middle), "--out", str(out), "--to", "example"]) == 0
    again = [Example.FromString(record) for record in read(out)]
    assert len(again) == len(examples)
    for one, other in zip(examples, again, strict=True):
        assert_same(one, other)


IDS = st.lists(st.integers(0, 2**63 - 1), max_size=4)
EXAMPLES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["a", "b", "ç"]), IDS),
        st.lists(st.floats(-1e6, 1e6, width=32), max_size=3),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=6,
)


@given(EXAMPLES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_examples_round_trip_through_parquet(
    tmp_path: Path, contents: list[tuple[dict[str, list[int]], list[float], int]]
) -> None:
    examples = []
    for features, labels, when in contents:
        example = Example(label=labels)
        example.line_id.req_time = when
        for name, values in features.items():
            example.named_feature.add(name=name).feature.fid_v2_list.value.extend(values)
            example.named_feature[-1].feature.fid_v2_list.SetInParent()
        examples.append(example)
    source = write(tmp_path / "old", [each.SerializeToString() for each in examples])
    middle, out = tmp_path / "middle.parquet", tmp_path / "new"
    base = ["--framing", "tfrecord", "--sample", "example"]
    assert cli.main(["data", "convert", str(source), *base, "--out", str(middle), "--force"]) == 0
    assert cli.main(["data", "convert", str(middle), "--out", str(out), "--force"]) == 0
    for one, other in zip(examples, map(Example.FromString, read(out)), strict=True):
        assert_same(one, other)


def instance() -> Instance:
    sample = Instance(fid=[(3 << 54) | 7, (3 << 54) | 8, (1000 << 54) | 1], value=[0.5], label=[1.0])
    sample.line_id.req_time = 1_700_000_000
    sample.feature.add(name="fc_named", fid=[(5 << 48) | 1])
    sample.feature.add(name="fc_numbers", int64_value=[4, 5])
    sample.feature.add(name="fc_lists").fid_list.add(value=[1, 2])
    return sample


def test_an_instance_becomes_the_example_that_a_parser_takes_for_the_same() -> None:
    payload = instance().SerializeToString()
    columns = [
        *(Ids("fc_slot_3"), Ids("fc_slot_1000"), Ids("fc_named"), Floats("value"), Ints("fc_numbers")),
        *(Label(), LineIdField("req_time")),
    ]
    (example,) = examples_of(payload, SampleFormat.INSTANCE)
    one = Parser("instance", columns).parse([payload])
    other = Parser("example", columns).parse([example.SerializeToString()])
    for name in one:
        mine, theirs = one[name], other[name]
        if isinstance(mine, Ragged) and isinstance(theirs, Ragged):
            assert mine.to_lists() == theirs.to_lists()
        else:
            assert torch.equal(mine, theirs)  # type: ignore[arg-type]
    lists = [each for each in example.named_feature if each.name == "fc_lists"]
    assert [list(part.value) for part in lists[0].feature.fid_v2_lists.list] == [[1, 2]]


def tf_example() -> TfExample:
    sample = TfExample()
    sample.features.feature["user"].int64_list.value.extend([3, 4])
    sample.features.feature["label"].int64_list.value.append(1)
    sample.features.feature["text"].bytes_list.value.append(b"hello")
    return sample


def test_formats_are_distinguished() -> None:
    batch = ExampleBatch(batch_size=2)
    batch.named_feature_list.add(name="user", feature=[{"fid_v2_list": {"value": [1]}}] * 2)
    bare = Example()
    bare.named_feature.add(name="user").feature.fid_v2_list.value.append(7)
    messages: dict[SampleFormat, list[Message]] = {
        SampleFormat.EXAMPLE: [rich_example(), bare, *map(Example.FromString, samples(3))],
        SampleFormat.EXAMPLE_BATCH: [batch],
        SampleFormat.INSTANCE: [instance()],
        SampleFormat.TF_EXAMPLE: [tf_example()],
    }
    for kind, several in messages.items():
        for message in several:
            payload = message.SerializeToString()
            assert [each for each in messages if fits(payload, each)] == [kind]


def test_peek_prints_the_contents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x", [rich_example().SerializeToString()] * 3)
    assert cli.main(["data", "peek", str(path), "-n", "2"]) == 0
    text = capsys.readouterr().out
    assert text.count("record at offset") == 2
    assert "1, -0.5" in text
    assert "3 v1 ids: 1023/18014398509481983, 0/0, 0/3" in text
    assert re.search(r"line_id.req_time +1700000000\n", text)
    assert cli.main(["data", "peek", str(path), "-n", "1", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["label"] == [1.0, -0.5]
    assert values["line_id"]["uid"] == (1 << 64) - 1
    assert values["features"]["f_int64_list"] == {"int64_list": [-(1 << 63), (1 << 63) - 1]}
    assert values["features"]["f_bytes_list"] == {"bytes_list": [{"base64": "/wA="}, ""]}


def test_peek_reads_parquet_instances_tf_examples_and_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    parquet = tmp_path / "rows.parquet"
    table = {
        "__LABEL__": [1, 0],
        "user": [[3], [4, 5]],
        "price": [0.5, 2.0],
        "__REQ_TIME__": [7, 8],
        "name": ["a", "b"],
    }
    pq.write_table(pa.table(table), parquet)
    assert cli.main(["data", "peek", str(parquet), "--json", "--ids", "user"]) == 0
    _, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert second["features"]["user"] == {"fid_v2_list": [4, 5]}
    assert second["features"]["name"] == {"bytes_list": ["b"]}
    assert (second["label"], second["line_id"]) == ([0.0], {"req_time": 8})
    for name, record in {"instances": instance(), "tf": tf_example()}.items():
        path = write(tmp_path / name, [record.SerializeToString()] * 2, "plain")
        assert cli.main(["data", "peek", str(path), "-n", "1"]) == 0
    printed = capsys.readouterr().out
    assert "fc_slot_1000" in printed
    assert "2 int64: 3, 4" in printed
    path = write(tmp_path / "bytes", [b"\x01\x02\x03"], "plain")
    assert cli.main(["data", "peek", str(path), "--framing", "plain", "--sample", "plaintext"]) == 0
    assert "3 bytes" in capsys.readouterr().out


def test_stats_are_those_of_a_plain_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = samples(500)
    path = write(tmp_path / "x", records)
    assert cli.main(["data", "stats", str(path), "--json", "--dim", "8", "--optimizer", "adam"]) == 0
    report = json.loads(capsys.readouterr().out)
    examples = [Example.FromString(record) for record in records]
    lists = [list(each.named_feature[0].feature.fid_v2_list.value) for each in examples]
    user = report["features"]["user"]
    assert report["samples"] == 500
    assert user["values"] == sum(map(len, lists))
    assert user["longest"] == max(map(len, lists))
    assert user["samples_with"] == sum(map(bool, lists))
    assert (user["unique"], user["unique_is_exact"]) == (len({each for values in lists for each in values}), True)
    assert user["slots"] == {str(k): v for k, v in Counter(i >> 48 for values in lists for i in values).items()}
    assert report["labels"] == [{"samples": 500, "missing": 0, "positive_rate": 0.5, "mean": 0.5}]
    assert report["req_time"] == {"first": 1_700_000_000, "last": 1_700_000_499}
    assert report["table"]["bytes"] == pytest.approx(user["unique"] * report["table"]["bytes_per_id"], rel=0.01)
    assert cli.main(["data", "stats", str(path)]) == 0
    assert "label 0  50.00 % above 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "shown"),
    [(999, "999 bytes"), (1000, "1 kB"), (999_400, "999 kB"), (999_600, "1 MB"), (999_600_000_000, "1 TB")],
)
def test_a_size_has_the_unit_that_it_rounds_to(count: int, shown: str) -> None:
    assert describing._size(count) == shown


def test_stats_of_every_format_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "clicks", samples(100))
    for kind in ("example_batch", "parquet"):
        assert cli.main(["data", "convert", str(source), "--out", str(tmp_path / kind), "--to", kind]) == 0
    capsys.readouterr()
    reports = []
    for name in ("clicks", "example_batch", "parquet"):
        assert cli.main(["data", "stats", str(tmp_path / name), "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1] == reports[2]


def test_a_feature_that_comes_up_late_is_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = rich_example()
    padding = Example(label=[1.0])
    padding.named_feature.add(name="pad").feature.bytes_list.value.append(b"x" * 10_000)
    path = write(tmp_path / "x", [padding.SerializeToString()] * 800 + [late.SerializeToString()] * 200)
    assert cli.main(["data", "stats", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["samples"] == 1000
    assert report["features"]["f_fid_v2_list"]["samples_with"] == 200
    assert "f_fid_v2_list" in report["late_features"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 50))
def test_unique_counts_are_exact_up_to_the_limit(numbers: list[int], limit: int) -> None:
    counter = UniqueCounter(limit=limit)
    for number in numbers:
        counter.add(np.array([number], np.int64))
    unique = len(set(numbers))
    assert counter.is_exact == (unique <= limit)
    assert counter.count == unique if counter.is_exact else abs(counter.count - unique) <= 1 + 0.05 * unique


@pytest.mark.parametrize("count", [1000, 30_000, 400_000])
def test_unique_counts_beyond_the_limit_are_near(count: int) -> None:
    counter = UniqueCounter(limit=10)
    numbers = np.arange(count, dtype=np.int64) * 7 + (5 << 48)
    for part in np.array_split(np.concatenate([numbers, numbers[::3]]), 7):
        counter.add(part)
    assert not counter.is_exact
    assert abs(counter.count - count) < 0.03 * count


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("adagrad", 1), ("Adam", 2)])
def test_the_memory_estimate_is_that_of_a_real_table(optimizer: str, state: int) -> None:
    chosen = {"sgd": row_optimizers.Sgd, "adagrad": row_optimizers.Adagrad, "Adam": row_optimizers.Adam}[optimizer]
    table = HashTable(TableConfig([Segment(32, optimizer=chosen())]))
    table.assign(torch.randint(0, 1 << 60, (200_000,)), torch.zeros(200_000, 32), time=0)
    stats = table.stats()
    real = (stats["row_bytes"] + stats["index_bytes"] + stats["other_bytes"]) / len(table)
    estimate = table_bytes_per_id(32, optimizer)
    assert estimate == pytest.approx(real, rel=0.15)
    assert estimate >= 16 + 4 * 32 * (1 + state)


def test_generated_clicks_are_the_same_for_a_seed(tmp_path: Path) -> None:
    def generate(name: str, *more: str) -> list[bytes]:
        assert cli.main(["data", "generate", "--examples", "300", "--out", str(tmp_path / name), *more]) == 0
        return read(tmp_path / name)

    first = generate("one")
    assert len(first) == 300
    assert first == generate("two")
    assert first != generate("three", "--seed", "1")
    example = Example.FromString(first[0])
    assert {
        each.name: {i >> 48 for i in each.feature.fid_v2_list.value} or {each.id} for each in example.named_feature
    } == {"user": {1}, "item": {2}, "tags": {3}, "context": {4}}
    labels = [Example.FromString(each).label[0] for each in first]
    assert set(labels) == {0.0, 1.0}


def test_samples_come_out_of_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with KafkaCluster() as cluster:
        cluster.spread("bare", samples(40))
        cluster.write("framed", [framed(Framing.SORT_ID, samples(4), sort_id=b"ab")] * 3, partition=2)
        url = f"kafka://{cluster.brokers}"
        assert cli.main(["data", "peek", f"{url}/bare", "-n", "2"]) == 0
        assert "topic 'bare', partition 0, offset 1" in capsys.readouterr().out
        assert cli.main(["data", "convert", f"{url}/framed", "--out", str(tmp_path / "out")]) == 0
        assert cli.main(["data", "stats", f"{url}/bare", "--json"]) == 0
        assert cli.main(["data", "peek", f"{url}/missing"]) == 1
    assert read(tmp_path / "out") == samples(4) * 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["samples"] == 40
    assert "no such topic" in captured.err


def test_more_samples_may_be_requested_than_any_file_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "good", samples(5))
    assert cli.main(["data", "peek", str(tmp_path / "good"), "-n", "1" + "0" * 30, "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["peek", "nowhere"], "there is no such file"),
        (["peek", "nothing*.gz"], "no file matches"),
        (["peek", "junk"], "its start fits no framing of any format"),
        (["peek", "junk", "--framing", "xml"], "framing must be one of"),
        (["peek", "good", "-n", "-1"], "-n must be >= 0"),
        (["peek", "empty"], "it is empty"),
        (["peek", "good", "kafka://x/y"], "expected one kafka://host:port/topic"),
        (["peek", "kafka://onlyhost"], "expected one kafka://host:port/topic"),
        (["peek", "good", "--framing", "plain", "--sample", "example"], "fits TFRECORD"),
        (["convert", "good", "--out", "good"], "it exists; --force"),
        (["convert", "good", "--out", "no/where"], "there is no folder"),
        (["convert", "good", "--out", "new", "--out-framing", "lagrangex"], "is only read"),
        (["convert", "good", "--out", "new", "--to", "example_batch", "--batch-size", "0"], "--batch-size must be"),
        (["convert", "cut", "--out", "new"], "truncated"),
        (["peek", "cut_early"], "file 'cut_early': offset 0: record with its checksum"),
        (["peek", "folder"], "file 'folder': it is a folder; name its files, as in 'folder/*'"),
        (["convert", "good", "--out", "folder", "--force"], "file 'folder': it is a folder"),
        (["convert", "good", "--out", "folder/", "--force"], "it is a folder"),
        (["convert", "good", "--out", "pipe", "--force"], "file 'pipe': it is a device, a pipe or a socket"),
        (["convert", "good", "--out", "pipe", "--to", "parquet", "--force"], "it is a device, a pipe or a socket"),
        (["generate", "--out", "pipe", "--force"], "it is a device, a pipe or a socket"),
        (["peek", "good", "--framing", "sort_id"], "not SORT_ID: its start fits EXAMPLE records of TFRECORD"),
        (["peek", "good", "--sample", "instance"], "not INSTANCE: its start fits EXAMPLE records of TFRECORD"),
        (["peek", "good", "--compression", "gzip"], "file 'good': not a GZIP stream"),
        (["convert", "good", "table.parquet", "--out", "new"], "file 'table.parquet': offset 0: "),
        (["convert", "mixed", "--out", "new.parquet"], "in some samples and fid_v2_list in others"),
        (["convert", "mixed", "--out", "new.parquet", "--look-ahead", "1"], "some samples"),
        (["stats", "good", "--optimizer", "sgdd"], "--optimizer must be a row optimizer"),
        (["stats", "good", "--dim", "0"], "dim"),
        (["generate", "--examples", "0", "--out", "new"], "--examples must be >= 1"),
        (["generate", "--users", "0", "--out", "new"], "num_users must be >= 1"),
        (["generate", "--users", "1" + "0" * 15, "--out", "new"], "not enough memory: "),
        (["stats", "good", "--exact-limit", "-1"], "--exact-limit must be >= 0, got -1"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good", samples(5))
    (tmp_path / "junk").write_bytes(bytes(range(7, 200)) * 3)
    (tmp_path / "empty").touch()
    (tmp_path / "cut").write_bytes((tmp_path / "good").read_bytes()[:-3])
    (tmp_path / "cut_early").write_bytes((tmp_path / "good").read_bytes()[:20])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "table.parquet").write_bytes(b"PAR1" * 20)
    one, other = Example(), Example()
    one.named_feature.add(name="user").feature.fid_v2_list.value.append(1)
    other.named_feature.add(name="user").feature.float_list.value.append(1)
    write(tmp_path / "mixed", [one.SerializeToString(), other.SerializeToString()])
    before = sorted(tmp_path.iterdir())
    assert cli.main(["data", *arguments]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("monolith data: error: ")
    assert message in line
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_system_whose_package_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_input(_: object) -> None:
        raise ImportError("Install the nosuch package to use it")

    monkeypatch.setattr("monolith.cli._data.commands.open_input", open_input)
    assert cli.main(["data", "peek", "nosuch://a/b"]) == 1
    assert capsys.readouterr().err == "monolith data: error: Install the nosuch package to use it\n"


def test_bad_records_are_skipped_when_that_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x", [*samples(3), b"\xff\xff", *samples(2)])
    base = [str(path), "--framing", "tfrecord", "--sample", "example"]
    out = tmp_path / "out.parquet"
    assert cli.main(["data", "convert", *base, "--out", str(out)]) == 1
    assert "offset" in capsys.readouterr().err
    assert not out.exists()
    assert cli.main(["data", "convert", *base, "--out", str(out), "--max-bad", "1"]) == 0
    assert cli.main(["data", "stats", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 5


@pytest.mark.parametrize("command", ["peek", "convert", "stats", "generate"])
def test_every_command_has_help_and_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["data", command, "--help"])
    assert stopped.value.code == 0
    assert f"monolith data {command}" in capsys.readouterr().out.split("example", 1)[1]


@pytest.mark.slow
def test_the_program_itself_generates(tmp_path: Path) -> None:
    arguments = ["generate", "--examples", "2000", "--out", str(tmp_path / "clicks.gz")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "data", *arguments], capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "2,000/2,000 samples (100 %)\n")
    assert len(read(tmp_path / "clicks.gz")) == 2000


@pytest.mark.parametrize("to", ["example", "instance", "parquet"])
def test_a_disk_that_is_full_leaves_no_half_file(
    tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "old", samples(3000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        status = cli.main(["data", "convert", "old", "--out", "new", "--to", to, "--look-ahead", "500"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert status == 74, "as sysexits.h numbers failures of storage"
    (line,) = capsys.readouterr().err.splitlines()
    assert "File too large" in line
    assert [each.name for each in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("to", ["example", "example_batch", "parquet"])
def test_a_stop_in_the_middle_leaves_no_half_file(
    tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = 0

    def update(bar: object, n: int = 1, **fields: object) -> None:
        nonlocal seen
        seen += n
        if seen > 3000:
            assert list(tmp_path.iterdir())  # something is being written
            raise KeyboardInterrupt

    monkeypatch.setattr("monolith.observe.progress.Progress.update", update)
    arguments = ["--examples", "100000", "--look-ahead", "100", "--out", str(tmp_path / "out"), "--to", to]
    assert cli.main(["data", "generate", *arguments]) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == "\nmonolith data generate: stopped; no half file is left\n"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_ctrl_c_leaves_no_half_file(tmp_path: Path) -> None:
    arguments = ["generate", "--examples", "100000000", "--look-ahead", "200", "--out", str(tmp_path / "x.parquet")]
    command = [sys.executable, "-c", PROGRAM, "data", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not any(each.stat().st_size for each in tmp_path.iterdir()):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, text = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 130, text
    assert "no half file is left" in text
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_what_is_piped_may_stop_listening(tmp_path: Path) -> None:
    path = write(tmp_path / "x", samples(3000))
    arguments = [sys.executable, "-c", PROGRAM, "data", "peek", str(path), "-n", "3000"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(100)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141, "as the shell reports a program that SIGPIPE ended"


def test_a_pipe_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)
    try:
        assert cli.main(["data", "peek", str(tmp_path / "pipe")]) == 1
    finally:
        os.close(writer)
        os.close(reader)
    assert "a pipe can be read once only; write it to a file first" in capsys.readouterr().err


def test_sums_of_labels_do_not_lose_small_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [Example(label=[0.1, 5.0]).SerializeToString()] * 999 + [Example(label=[0.1]).SerializeToString()]
    assert cli.main(["data", "stats", str(write(tmp_path / "x", records)), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["labels"]
    assert math.isclose(first["mean"], 0.1, rel_tol=1e-6)
    assert (second["samples"], second["missing"], second["positive_rate"]) == (999, 1, 1.0)
