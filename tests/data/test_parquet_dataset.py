"""Parquet files as batches, written by pyarrow and by duckdb, against the values that were written."""

from __future__ import annotations

import datetime as dt
import errno
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.pipelines import plain, read_all
from monolith import ids
from monolith.data import (
    INVALID_LABEL,
    BadRecords,
    DenseColumn,
    FileSet,
    FirstBytes,
    Floats,
    Ids,
    Ints,
    Label,
    LineIdField,
    NestedIds,
    ParquetDataset,
    Parser,
    Weight,
    text_ids,
)
from monolith.data.sources import arrow_columns, wanted_columns
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tensors import Ragged

INT64 = st.integers(-(2**63), 2**63 - 1)


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def only_batch(path: Path, *args: Any, **options: Any) -> Any:
    (batch,) = ParquetDataset(path, *args, **options)
    return batch


def test_each_type_becomes_its_kind_of_column(tmp_path: Path) -> None:
    day = dt.date(2024, 1, 2)
    path = write(
        tmp_path / "x.parquet",
        {
            "ids": pa.array([[1, 2], [], None, [2**63 - 1]], pa.list_(pa.int64())),
            "small": pa.array([[1], [2], [3], []], pa.large_list(pa.int8())),
            "unsigned": pa.array([[2**64 - 1], [], [], [0]], pa.list_(pa.uint64())),
            "floats": pa.array([[0.5], [], [1.5, 2.5], []], pa.list_(pa.float64())),
            "nested": pa.array([[[1], []], [], [[2, 3]], []], pa.list_(pa.list_(pa.int64()))),
            "dense": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float32(), 2)),
            "int": pa.array([1, -2, 3, 4], pa.int32()),
            "float": pa.array([0.1, 0.2, 0.3, 0.4], pa.float64()),
            "flag": pa.array([True, False, True, True]),
            "text": pa.array(["a", None, "ü", ""]),
            "raw": pa.array([b"\xff", b"", b"b", b"c"], pa.large_binary()),
            "word": pa.array(["x", "y", "x", "x"]).dictionary_encode(),
            "day": pa.array([day] * 4),
        },
    )
    batch = only_batch(path)
    assert batch["ids"].to_lists() == [[1, 2], [], [], [2**63 - 1]]
    assert batch["small"].to_lists() == [[1], [2], [3], []]
    assert batch["unsigned"].to_lists() == [[-1], [], [], [0]]
    assert batch["floats"].to_lists() == [[0.5], [], [1.5, 2.5], []]
    assert batch["floats"].dtype == batch["float"].dtype == batch["dense"].dtype == torch.float32
    assert batch["nested"].to_lists() == [[[1], []], [], [[2, 3]], []]
    assert batch["dense"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert (batch["int"].tolist(), batch["int"].dtype) == ([1, -2, 3, 4], torch.int64)
    torch.testing.assert_close(batch["float"], torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert batch["flag"].tolist() == [1, 0, 1, 1]
    assert [len(row) for row in batch["text"]] == [1, 0, 1, 1]
    assert batch["text"].values.tolist() == text_ids("text", ["a", "ü", ""]).tolist()
    assert batch["raw"] == [b"\xff", b"", b"b", b"c"]
    assert batch["word"].values.tolist() == text_ids("word", ["x", "y", "x", "x"]).tolist()
    assert only_batch(path, {"text": "bytes", "word": "bytes"})["text"] == [b"a", b"", "ü".encode(), b""]
    assert only_batch(path, {"text": "bytes", "word": "bytes"})["word"] == [b"x", b"y", b"x", b"x"]
    assert batch["day"].tolist() == [(day - dt.date(1970, 1, 1)).days] * 4


@given(st.lists(st.one_of(st.none(), st.lists(INT64, max_size=5)), max_size=30), st.integers(1, 9), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_any_lists_round_trip(tmp_path_factory: pytest.TempPathFactory, lists: Any, group: int, block: int) -> None:
    path = tmp_path_factory.mktemp("lists") / "x.parquet"
    write(path, {"ids": pa.array(lists, pa.list_(pa.int64()))}, row_group_size=group)
    batches = list(ParquetDataset(path, block_rows=block))
    assert [row for batch in batches for row in plain(batch["ids"])] == [row or [] for row in lists]
    for batch in batches:  # splits and values fit, also where Arrow's list began in the middle of its values
        column = batch["ids"]
        assert isinstance(column, Ragged)
        Ragged(column.values, column.row_splits, validate=True)


def test_only_the_requested_columns_are_returned_in_that_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"a": [1], "b": [2], "c": [[3]]})
    assert list(only_batch(path, ["c", "a"])) == ["c", "a"]


def test_requested_types_are_made_or_rejected(tmp_path: Path) -> None:
    v1 = ids.pack_v1(3, np.array([12345, 7]))
    path = write(
        tmp_path / "x.parquet",
        {
            "v1": pa.array([[int(v1[0])], [int(v1[1])]], pa.list_(pa.int64())),
            "n": pa.array([1, 2]),
            "x": [0.5, 1],
            "t": ["a", "b"],
            "deep": pa.array([[[1]], []], pa.list_(pa.list_(pa.int64()))),
        },
    )
    batch = only_batch(path, {"v1": "fid_v1", "n": "float", "x": "float", "t": "BYTES", "deep": "float"})
    assert batch["v1"].flat_values.tolist() == [844424930144313, 844424930131975]
    assert (batch["n"].tolist(), batch["n"].dtype) == ([1.0, 2.0], torch.float32)
    assert (batch["deep"].to_lists(), batch["deep"].dtype) == ([[[1.0]], []], torch.float32)
    for column, wanted in (("x", "int"), ("x", "fid_v2"), ("t", "float"), ("v1", "bytes"), ("x", "bytes")):
        with pytest.raises(InvalidArgumentError, match=rf"x.parquet': column '{column}': expected {wanted}, got"):
            only_batch(path, {column: wanted})
    with pytest.raises(ValueError, match=r"column type must be one of any, ids, text, int, .*got 'double'"):
        ParquetDataset(path, {"x": "double"})
    with pytest.raises(TypeError, match="got the text 'label'"):
        ParquetDataset(path, "label")


def test_an_unsupported_column_is_skipped_with_a_warning_or_named_where_it_was_requested(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wanted_columns, "_WARNED", set())
    columns = {
        "struct": pa.array([{"a": 1}]),
        "fixed": pa.array([["a", "b"]], pa.list_(pa.string(), 2)),
        "texts": pa.array([["a", None, "b"]]),
        "decimal": pa.array([Decimal("1.5")], pa.decimal128(5, 2)),
        "empty": pa.nulls(1),
    }
    path = write(tmp_path / "x.parquet", columns)
    batch = only_batch(path)
    assert list(batch) == ["texts", "decimal", "empty"]
    assert batch["texts"].to_lists() == [text_ids("texts", ["a", "b"]).tolist()]
    assert batch["decimal"].tolist() == [1.5]
    assert batch["empty"].to_lists() == [[]]
    only_batch(path)
    (message,) = caplog.messages
    assert "have no place in a batch are skipped: 'struct' (struct<a: int64>), 'fixed' (fixed_size" in message
    for name in ("struct", "fixed"):
        with pytest.raises(InvalidArgumentError, match=f"x.parquet': column '{name}': a .* has no place in a batch"):
            only_batch(path, [name])


def test_missing_values_follow_the_rule_of_the_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_columns, "_WARNED", set())
    columns = {
        "price": pa.array([1.5, None, 2.0]),
        "age": pa.array([30, None, 40], pa.int32()),
        "day": pa.array([dt.date(1970, 1, 2), None, None]),
        "items": pa.array([[1, None, 2], None, []], pa.list_(pa.int64())),
    }
    path = write(tmp_path / "x.parquet", columns)
    batch = only_batch(path)
    assert str(batch["price"].tolist()) == "[1.5, nan, 2.0]"
    assert (batch["age"].tolist(), batch["day"].tolist()) == ([30, 0, 40], [1, 0, 0])
    assert batch["items"].to_lists() == [[1, 2], [], []]
    only_batch(path)
    assert [message.split(": ")[1] for message in caplog.messages] == ["column 'age'", "column 'day'"]
    batch = only_batch(path, {"age": "float", "price": "float"})
    assert str(batch["age"].tolist()) == "[30.0, nan, 40.0]"
    assert only_batch(path, {"age": "ids"})["age"].to_lists() == [[30], [], [40]]
    assert only_batch(path, {"age": "text"})["age"].to_lists() == [
        text_ids("age", ["30"]).tolist(),
        [],
        text_ids("age", ["40"]).tolist(),
    ]
    with pytest.raises(DataLossError, match=r"x.parquet': column 'age': 1 nulls, the first in row 1.*use float"):
        only_batch(path, {"age": "int"})
    with pytest.raises(InvalidArgumentError, match="column 'price': expected ids: texts or integers, got double"):
        only_batch(path, {"price": "ids"})


def test_columns_of_a_parser_become_what_a_parser_makes(tmp_path: Path) -> None:
    columns = {
        "user": pa.array([7, None, 2**60]),
        "genres": pa.array(["a|b", "", None]),
        "history": pa.array([["a"], [], ["b", "a"]]),
        "age": pa.array([30, None, 40]),
        "vector": pa.array([[1.0], [2.0, 3.0, 4.0], None]),
        "clicked": pa.array([True, False, None]),
        "weight": pa.array([2.0, None, -1.0]),
        "title": pa.array(["x", None, "y"]),
        "uid": pa.array([5, None, 6]),
        "nested": pa.array([[[1], [2, 3]], [], None], pa.list_(pa.list_(pa.int64()))),
    }
    path = write(tmp_path / "x.parquet", columns)
    wanted = [
        Ids("user", slot=3),
        Ids("genres", separator="|", texts_of="history"),
        Ids("history", length=1),
        DenseColumn("age", dtype="int64"),
        DenseColumn("vector", width=2),
        Label("clicked", width=2),
        Weight("weight"),
        FirstBytes("title"),
        LineIdField("uid"),
        NestedIds("nested"),
    ]
    batch = only_batch(path, wanted)
    a, b = text_ids("history", ["a", "b"]).tolist()
    assert batch["user"].to_lists() == [[ids.pack_v2(3, 7)], [], [ids.pack_v2(3, 2**60)]]
    assert batch["genres"].to_lists() == [[a, b], [], []]
    assert batch["history"].tolist() == [[a], [0], [b]]
    assert (batch["age"].tolist(), batch["age"].dtype) == ([[30], [0], [40]], torch.int64)
    assert batch["vector"].tolist() == [[1, 0], [2, 3], [0, 0]]
    assert batch["clicked"].tolist() == [[1, INVALID_LABEL], [0, INVALID_LABEL], [INVALID_LABEL] * 2]
    assert batch["weight"].tolist() == [2, 1, 1]
    assert (batch["title"], batch["uid"].tolist()) == ([b"x", b"", b"y"], [5, 0, 6])
    assert batch["nested"].to_lists() == [[[1], [2, 3]], [], []]
    assert only_batch(path, [Ints("age")])["age"].to_lists() == [[30], [], [40]]
    assert only_batch(path, [Floats("age")])["age"].to_lists() == [[30.0], [], [40.0]]


def test_columns_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"a": [1]})
    with pytest.raises(ValueError, match="'a' is requested twice"):
        ParquetDataset(path, ["a", Ids("a")])
    with pytest.raises(ValueError, match="'a' is requested as Ids"):
        ParquetDataset(path, {"a": Ids("b")})
    with pytest.raises(TypeError, match=r"expected names or columns such as Ids\('user'\), got 3"):
        ParquetDataset(path, [3])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="LineId has no field 'a'"):
        only_batch(path, [LineIdField("a")])
    with pytest.raises(ValueError, match="separator is for texts of CSV"):
        Parser("example", [Ids("a", separator="|")])


def test_reserved_columns_become_typed_fields_on_request(tmp_path: Path) -> None:
    columns = {
        "__LABEL__": pa.array([[1.0, 0.0, 5.0], [1.0], None], pa.list_(pa.float64())),
        "__UID__": pa.array([7, None, 9], pa.uint64()),
        "__SAMPLE_RATE__": pa.array([0.5, None, 0.25], pa.float64()),
        "__ACTIONS__": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "__CID__": pa.array(["a", None, "c"]),
        "__OTHER__": pa.array([1, 2, 3]),
    }
    path = write(tmp_path / "x.parquet", columns)
    batch = only_batch(path, num_labels=2)
    assert list(batch) == ["label", "uid", "sample_rate", "actions", "cid", "__OTHER__"]
    assert batch["label"].tolist() == [[1, 0], [1, INVALID_LABEL], [INVALID_LABEL] * 2]
    assert (batch["uid"].tolist(), batch["uid"].dtype) == ([7, 0, 9], torch.int64)
    assert (batch["sample_rate"].tolist(), batch["sample_rate"].dtype) == ([0.5, 1.0, 0.25], torch.float32)
    assert batch["actions"].to_lists() == [[1, 2], [], []]
    assert batch["cid"] == [b"a", b"", b"c"]
    assert list(only_batch(path, ["__LABEL__", "__ACTIONS__"])) == ["__LABEL__", "__ACTIONS__"]


@pytest.mark.parametrize(
    ("labels", "width", "expected"),
    [
        (pa.array([1, None, 0], pa.int32()), 1, [[1], [INVALID_LABEL], [0]]),
        (
            pa.array([0.5, 1.5, None], pa.float64()),
            2,
            [[0.5, INVALID_LABEL], [1.5, INVALID_LABEL], [INVALID_LABEL] * 2],
        ),
        (pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)), 1, [[1], [3], [5]]),
    ],
)
def test_labels_of_any_numbers(tmp_path: Path, labels: Any, width: int, expected: list[list[float]]) -> None:
    batch = only_batch(write(tmp_path / "x.parquet", {"__LABEL__": labels}), num_labels=width)
    assert (batch["label"].tolist(), batch["label"].dtype) == (expected, torch.float32)


def test_reserved_columns_of_another_kind_are_refused(tmp_path: Path) -> None:
    cases = [
        ({"__UID__": pa.array([0.5])}, r"'__UID__': expected int, got double"),
        ({"__UID__": pa.array([[1]])}, "the field 'uid' of LineId has one value for each row, got list"),
        ({"__ACTIONS__": pa.array([1])}, "the field 'actions' of LineId has a list for each row, got int64"),
        ({"__LABEL__": pa.array([[[1]]])}, "labels are numbers or lists of numbers, got list<"),
        ({"uid": pa.array([1]), "__UID__": pa.array([1])}, "there is a column 'uid' already"),
    ]
    for columns, message in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            only_batch(write(tmp_path / "x.parquet", columns), num_labels=1)
    with pytest.raises(ValueError, match="num_labels must be an integer >= 1, got 0"):
        ParquetDataset(tmp_path, num_labels=0)


def test_a_missing_column_is_named_with_the_existing_ones(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", {"a": [1], "b": [2]})
    write(tmp_path / "2.parquet", {"a": [1]})
    with ParquetDataset(tmp_path / "*.parquet", ["a", "b"]).read() as reading:
        next(reading)
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"2.parquet': there is no column 'b'; it has a"):
                next(reading)


@pytest.mark.usefixtures("nothing_left_behind")
def test_damage_is_named_and_is_not_the_end(tmp_path: Path) -> None:
    layout = {"row_group_size": 1000, "compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = write(tmp_path / "x.parquet", {"a": list(range(5000))}, **layout)
    data = path.read_bytes()
    for damaged in (b"", b"PAR1", data[:-5], data[: len(data) // 2], b"x" * 1000):
        path.write_bytes(damaged)
        with pytest.raises(DataLossError, match=r"x.parquet': no Parquet that can be read"):
            list(ParquetDataset(path))
    start = 2500 * 8
    path.write_bytes(data[:start] + b"\xff" * 3000 + data[start + 3000 :])
    with ParquetDataset(path, block_rows=500).read() as reading:
        next(reading)
        with pytest.raises(DataLossError, match=r"x.parquet': row group \d, row \d+: no Parquet") as first:
            list(reading)
        with pytest.raises(DataLossError) as second:
            next(reading)
    assert str(first.value) == str(second.value)


@pytest.mark.usefixtures("nothing_left_behind")
def test_damaged_rows_are_skipped_and_counted_up_to_a_limit(tmp_path: Path) -> None:
    layout = {"row_group_size": 1000, "compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = write(tmp_path / "1.parquet", {"a": list(range(5000))}, **layout)
    data = path.read_bytes()
    start = 2500 * 8
    path.write_bytes(data[:start] + b"\xff" * 3000 + data[start + 3000 :])
    (tmp_path / "2.parquet").write_bytes(data[:-5])
    write(tmp_path / "3.parquet", {"a": [7]})
    bad = BadRecords(limit=1001)
    dataset = ParquetDataset(tmp_path / "*.parquet", block_rows=500, bad=bad)
    rows = [row for batch in dataset for row in batch["a"].tolist()]  # type: ignore[union-attr]
    assert rows == [*range(2000), *range(3000, 5000), 7]
    assert bad.count == 1001  # the row group, and the file
    assert "1.parquet': row group 2, row 0" in bad.first[0]
    assert "2.parquet'" in bad.first[1]
    with pytest.raises(DataLossError, match=r"row group 2, row 0.*1000 bad records, limit is 999"):
        list(ParquetDataset(tmp_path / "*.parquet", bad=BadRecords(limit=999)))


def test_a_disk_that_fails_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", {"a": [1, 2]})

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    bad = BadRecords(limit=100)
    with pytest.raises(DataLossError, match="Input/output error"):
        list(ParquetDataset(path, bad=bad))
    assert bad.count == 0


def test_reading_resumes_from_any_block(tmp_path: Path) -> None:
    for file in range(3):
        first = 100 * file
        columns = {"n": list(range(first, first + 50)), "ids": [[n] * (n % 4) for n in range(first, first + 50)]}
        write(tmp_path / f"{file}.parquet", columns, row_group_size=20)
    dataset = ParquetDataset(FileSet(tmp_path / "*", seed=1), block_rows=7, cycle_length=2)
    for pipeline in (dataset, dataset.batch(11), dataset.shuffle(30, seed=2).batch(8).prefetch(2)):
        whole = read_all(pipeline)
        assert sorted(n for batch in whole for n in batch["n"]) == [n + 100 * f for f in range(3) for n in range(50)]
        with pipeline.read() as reading:
            positions = [reading.position] + [reading.position for _ in reading]
        for number, position in enumerate(positions):
            assert read_all(pipeline, position) == whole[number:]


def test_a_file_without_rows_has_no_batches(tmp_path: Path) -> None:
    assert list(ParquetDataset(write(tmp_path / "x.parquet", {"a": pa.array([], pa.int64())}))) == []


def test_files_of_duckdb_are_read(tmp_path: Path) -> None:
    path = tmp_path / "duck.parquet"
    query = """
        SELECT i AS user_id, [i, i * 2, 9007199254740993]::BIGINT[] AS items, i / 4.0 AS price, 'name ' || i AS name,
               CASE WHEN i % 2 = 0 THEN []::BIGINT[] END AS maybe, i % 2 = 0 AS clicked
        FROM range(3000) AS numbers(i)
    """
    duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048, COMPRESSION zstd)")
    batches = list(ParquetDataset(path, ["user_id", "items", "price", "name", "maybe", "clicked"]).batch(1000))
    assert [batch.num_rows for batch in batches] == [1000] * 3
    rows = [plain(batch) for batch in batches]
    assert [n for batch in rows for n in batch["user_id"]] == list(range(3000))
    assert rows[2]["items"][-1] == [2999, 5998, 9007199254740993]
    assert rows[0]["price"][3] == 0.75
    assert rows[1]["name"][1] == text_ids("name", ["name 1001"]).tolist()
    assert rows[0]["maybe"] == [[]] * 1000
    assert rows[0]["clicked"][:3] == [1, 0, 1]


def test_memory_of_arrow_outlives_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": list(range(1000)), "ids": [[n] for n in range(1000)]})
    batch = only_batch(path)
    pa.default_memory_pool().release_unused()
    assert batch["n"].sum().item() == batch["ids"].flat_values.sum().item() == 499500
