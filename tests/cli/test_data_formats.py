"""``monolith data convert`` writes Instance and tf.train.Example, too, and a parser reads the same out of them."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from data.framed_files import framed
from monolith import cli
from monolith.data import (
    Batch,
    Floats,
    Framing,
    Ids,
    Ints,
    Label,
    LineIdField,
    NestedIds,
    Parser,
    RecordWriter,
    Weight,
    read_examples,
)
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.tensors import Ragged

SLOT_V1, SLOT_V2 = 600 << 54, 7 << 48


def example(number: int) -> Example:
    """What Instance and tf.train.Example can both hold; the name of v1 ids is the one that an Instance gives them."""
    made = Example(label=[float(number % 2), 0.5], instance_weight=1.5, data_source_key=256 * (number % 3))
    made.line_id.uid, made.line_id.req_time = (1 << 64) - 1 - number, 1_700_000_000 + number
    made.line_id.actions.extend([1, -2])
    made.line_id.user_id, made.line_id.is_draw, made.line_id.sample_rate = "ü", True, 0.25
    lists = {
        "fc_slot_600": ("fid_v1_list", [SLOT_V1 + number, SLOT_V1 + 5]),
        "user": ("fid_v2_list", [SLOT_V2 + number]),
        "price": ("float_list", [0.5, -1.0][: number % 3]),
        "count": ("int64_list", [-(1 << 63), (1 << 63) - 1]),
        "title": ("bytes_list", [b"\xff\x00", b""]),
    }
    for name, (kind, values) in lists.items():
        if values:
            getattr(made.named_feature.add(name=name).feature, kind).value.extend(values)
    return made


EXAMPLES = [example(number) for number in range(7)]


def write(path: Path, records: list[bytes], framing: str = "tfrecord") -> Path:
    with RecordWriter(path, framing) as writer:
        for record in records:
            writer.write(record)
    return path


def convert(source: Path, out: Path, *arguments: str) -> None:
    assert cli.main(["data", "convert", str(source), "--out", str(out), *arguments]) == 0


def plain(made: Example) -> tuple[object, ...]:
    """But for the order and the numbers of the features, which not every format keeps."""
    features = {each.name: each.feature.SerializeToString(deterministic=True) for each in made.named_feature}
    typed = (list(made.label), made.instance_weight, made.data_source_key)
    return features, made.line_id.SerializeToString(deterministic=True), typed


@pytest.mark.parametrize("framing", list(Framing))
def test_instances_round_trip_whatever_framing_they_are_read_from(tmp_path: Path, framing: Framing) -> None:
    source, middle, out = tmp_path / "old", tmp_path / "middle", tmp_path / "new"
    source.write_bytes(framed(framing, [each.SerializeToString() for each in EXAMPLES], word=3))
    convert(source, middle, "--to", "instance")
    flat = [list(Instance.FromString(record).fid) for record in read_examples(middle, "tfrecord", sample="instance")]
    assert flat == [[SLOT_V1 + number, SLOT_V1 + 5] for number in range(7)]
    convert(middle, out, "--to", "example")
    again = [Example.FromString(record) for record in read_examples(out, "tfrecord")]
    assert [plain(each) for each in again] == [plain(each) for each in EXAMPLES]


@pytest.mark.parametrize("framing", list(Framing))
def test_tf_examples_round_trip_whatever_framing_they_are_read_from(tmp_path: Path, framing: Framing) -> None:
    source, middle, out = tmp_path / "old", tmp_path / "middle", tmp_path / "new"
    wanted = [example(number) for number in range(7)]
    source.write_bytes(framed(framing, [each.SerializeToString() for each in wanted], word=3))
    convert(source, middle, "--to", "tf_example")
    convert(middle, out, "--to", "example", "--ids", "user,fc_slot_600")
    for each in wanted:  # ids have one layout there, the one that parsers give
        ids = each.named_feature[0].feature
        numbers = [(number & ((1 << 48) - 1)) | (600 << 48) for number in ids.fid_v1_list.value]
        ids.fid_v2_list.value.extend(numbers)
    again = [Example.FromString(record) for record in read_examples(out, "tfrecord")]
    assert [plain(each) for each in again] == [plain(each) for each in wanted]


@pytest.mark.parametrize("to", ["instance", "tf_example", "example_batch"])
@pytest.mark.parametrize(("framing", "ending"), [("plain", ".gz"), ("sort_id", ".snappy"), ("tfrecord", ".zst")])
def test_every_format_is_written_in_every_framing(tmp_path: Path, to: str, framing: str, ending: str) -> None:
    source = write(tmp_path / "old", [each.SerializeToString() for each in EXAMPLES])
    middle, again, out = tmp_path / f"middle{ending}", tmp_path / "again", tmp_path / "new"
    convert(source, middle, "--to", to, "--out-framing", framing)
    convert(middle, again, "--to", to)  # records stay as they are
    assert list(read_examples(middle, framing, sample=to)) == list(read_examples(again, "tfrecord", sample=to))
    convert(again, out, "--to", "example")
    assert [Example.FromString(each).label for each in read_examples(out, "tfrecord")] == [
        each.label for each in EXAMPLES
    ]


def test_a_parser_reads_the_same_out_of_every_format(tmp_path: Path) -> None:
    source = write(tmp_path / "example", [each.SerializeToString() for each in EXAMPLES])
    columns = [Ids("user"), Ids("fc_slot_600"), Floats("price"), Ints("count")]
    typed = [Label(width=2), Weight(), LineIdField("uid"), LineIdField("actions")]
    batches = []
    for kind in ("example", "instance", "example_batch", "tf_example"):
        if kind != "example":
            convert(source, tmp_path / kind, "--to", kind)
        own = [*columns, *typed] if kind != "tf_example" else [*tf_columns(), Label(width=2)]
        records = list(read_examples(tmp_path / kind, "tfrecord", sample=kind))
        batches.append(Parser(kind, own).parse(records))
    names = [column.name for column in columns]
    for one, other in pairwise(batches):
        for name in [*names, "label"]:
            assert values(one, name) == values(other, name)
    for one, other in pairwise(batches[:-1]):
        for column in typed:
            assert values(one, column.name) == values(other, column.name)


def tf_columns() -> list[Ids | Floats | Ints]:
    return [Ids("user", slot=7), Ids("fc_slot_600", slot=600), Floats("price"), Ints("count")]


def values(batch: Batch, name: str) -> object:
    column = batch[name]
    if isinstance(column, Ragged):
        return column.to_lists()
    return column.tolist() if isinstance(column, torch.Tensor) else column


def test_batches_and_parquet_keep_raw_features_and_data_sources(tmp_path: Path) -> None:
    raw = Example(data_source_key=512)
    raw.named_raw_feature.add(name="query").raw_feature.feature.add().bytes_value = b"shoes"
    source = write(tmp_path / "old", [*(each.SerializeToString() for each in EXAMPLES), raw.SerializeToString()])
    batches, out = tmp_path / "batches", tmp_path / "new"
    convert(source, batches, "--to", "example_batch")
    keys = [ExampleBatch.FromString(each).data_source_key for each in read_examples(batches, "tfrecord")]
    assert keys == [0, 256, 512, 0, 256, 512, 0, 512]  # a batch has one source
    convert(batches, out)
    again = [Example.FromString(record) for record in read_examples(out, "tfrecord")]
    assert [each.data_source_key for each in again] == keys
    assert again[-1].named_raw_feature == raw.named_raw_feature
    convert(source, tmp_path / "x.parquet", "--drop-unfit")
    convert(tmp_path / "x.parquet", out, "--force")
    assert [Example.FromString(each).data_source_key for each in read_examples(out, "tfrecord")] == keys


@pytest.mark.parametrize("to", ["instance", "tf_example", "parquet"])
@pytest.mark.parametrize("kind", ["raw", "int64_value", "double_list"])
def test_unsupported_features_are_rejected_by_name_or_dropped(
    tmp_path: Path, to: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unfit = example(1)
    if kind == "raw":
        unfit.named_raw_feature.add(name="odd").raw_feature.feature.add().int64_value = 1
    elif kind == "int64_value":
        unfit.named_feature.add(name="odd").feature.int64_value = 1
    else:
        unfit.named_feature.add(name="odd").feature.double_list.value.append(1e300)
    source, out = write(tmp_path / "old", [example(0).SerializeToString(), unfit.SerializeToString()]), tmp_path / "new"
    arguments = ["data", "convert", str(source), "--out", str(out), "--to", to]
    if (to, kind) == ("parquet", "double_list"):
        assert cli.main(arguments) == 0
        return
    assert cli.main(arguments) == 1
    message = capsys.readouterr().err
    assert "odd" in message
    assert to == "parquet" or "offset" in message  # the place of the sample
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert cli.main([*arguments, "--drop-unfit"]) == 0
    convert(out, tmp_path / "back", "--to", "example")
    again = [Example.FromString(record) for record in read_examples(tmp_path / "back", "tfrecord")]
    assert [each.line_id for each in again] == [each.line_id for each in (example(0), unfit)]


def test_stats_count_the_features_declared_as_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "old", [each.SerializeToString() for each in EXAMPLES])
    convert(source, tmp_path / "tf", "--to", "tf_example")
    reports = []
    for path, ids in ((source, ""), (tmp_path / "tf", "user,fc_slot_600")):
        capsys.readouterr()
        assert cli.main(["data", "stats", str(path), "--json", "--ids", ids]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    for name in ("user", "fc_slot_600"):
        assert reports[0]["features"][name] == reports[1]["features"][name]
    assert reports[0]["table"] == reports[1]["table"]


def test_names_that_mean_something_else_in_a_tf_example_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice, label = Example(), Example()
    for _ in range(2):
        twice.named_feature.add(name="user").feature.fid_v2_list.value.append(1)
    label.named_feature.add(name="label").feature.int64_list.value.append(3)
    for made, text in ((twice, "'user' occurs twice"), (label, "'label' is the name of a typed field")):
        source = write(tmp_path / "old", [made.SerializeToString()])
        assert cli.main(["data", "convert", str(source), "--out", str(tmp_path / "new"), "--to", "tf_example"]) == 1
        assert text in capsys.readouterr().err


def test_features_declared_as_ids_must_be_integers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = TfExample()
    sample.features.feature["price"].float_list.value.append(0.5)
    sample.features.feature["__RANK__"].int64_list.value.append(1 << 40)  # no rank: it stays a feature
    sample.features.feature["__USER_ID__"].bytes_list.value.append(b"\xff")
    source = write(tmp_path / "old", [sample.SerializeToString()])
    assert cli.main(["data", "peek", str(source), "--ids", "price"]) == 1
    assert "feature 'price' cannot be ids: it is a float_list" in capsys.readouterr().err
    assert cli.main(["data", "peek", str(source)]) == 0
    shown = capsys.readouterr().out
    assert "__RANK__" in shown
    assert "line_id" not in shown


def test_the_commands_of_the_how_to_run(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    write(tmp_path / "old" / "1.snappy", [each.SerializeToString() for each in EXAMPLES], "sort_id")
    text = (project_root / "docs" / "how-to" / "data-command.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line, comments=True) for line in block.replace("100000", "300").splitlines()]
    assert {command[2] for command in commands} == {"peek", "convert", "stats", "generate"}
    for command in commands:
        if not command[3].startswith("kafka:"):  # tests/cli/test_data.py has a broker
            assert cli.main(command[1:]) == 0
    assert len(list(read_examples("new.tfrecord.zst", "tfrecord"))) == len(EXAMPLES)


@pytest.mark.parametrize("to", ["example", "example_batch", "instance", "tf_example", "parquet"])
def test_a_conversion_that_is_stopped_leaves_no_half_file(
    tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "old", [each.SerializeToString() for each in EXAMPLES])

    def update(*_: object, **__: object) -> None:
        assert to == "parquet" or len(list(tmp_path.iterdir())) == 2  # something is being written
        raise KeyboardInterrupt

    monkeypatch.setattr("monolith.observe.progress.Progress.update", update)
    assert cli.main(["data", "convert", str(source), "--out", str(tmp_path / "new"), "--to", to]) == 130
    assert list(tmp_path.iterdir()) == [source]
    assert capsys.readouterr().err == "\nmonolith data convert: stopped; no half file is left\n"


def test_nested_ids_of_an_example_are_v2_ids_in_an_instance(tmp_path: Path) -> None:
    made = Example(label=[1.0])
    made.named_feature.add(name="history").feature.fid_v1_lists.list.add(value=[SLOT_V1 | 5])
    source = write(tmp_path / "old", [made.SerializeToString()])
    convert(source, tmp_path / "new", "--to", "instance", "--sample", "example", "--framing", "tfrecord")
    parsed = [
        Parser(kind, [NestedIds("history")]).parse(list(read_examples(path, "tfrecord", sample=kind)))
        for kind, path in (("example", source), ("instance", tmp_path / "new"))
    ]
    assert values(parsed[0], "history") == values(parsed[1], "history") == [[[(600 << 48) | 5]]]
