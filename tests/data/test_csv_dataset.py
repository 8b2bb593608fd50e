"""CSV files as batches: types, missing values, bad lines, positions; against the values that were written."""

from __future__ import annotations

import csv
import gzip
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.pipelines import plain, read_all
from monolith.data import BadRecords, CsvDataset, DenseColumn, FileSet, Ids, Label, text_ids
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.tensors import Ragged


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def only_batch(path: Path, *args: Any, **options: Any) -> Any:
    (batch,) = CsvDataset(path, *args, **options)
    return batch


def many_rows(path: Path, rows: int, *, opened: Any = open) -> Path:
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "user", "price"])
        writer.writerows((row, f"user {row % 7}", row / 4) for row in range(rows))
    return path


def test_types_are_inferred_and_texts_become_ids(tmp_path: Path) -> None:
    text = (
        "user,item,price,clicked,day,big\nann,7,0.5,true,1970-01-03,18446744073709551615\nbob,-8,1,false,1970-01-02,3\n"
    )
    path = write(tmp_path / "x.csv", text)
    batch = only_batch(path)
    assert batch["user"].to_lists() == [[each] for each in text_ids("user", ["ann", "bob"]).tolist()]
    assert (batch["item"].tolist(), batch["item"].dtype) == ([7, -8], torch.int64)
    assert (batch["price"].tolist(), batch["price"].dtype) == ([0.5, 1.0], torch.float32)
    assert batch["clicked"].tolist() == [1, 0]
    assert batch["day"].tolist() == [2, 1]
    assert batch["big"].tolist() == [-1, 3]  # the bits of an id, not a real number
    assert str(CsvDataset(path).schema.field("user").type) == "string"


def test_requested_columns_are_made(tmp_path: Path) -> None:
    text = "user,zip,genres,age,label\n7,01234,Action|Comedy,31,1\n,99,,,0\n"
    wanted = ["user", Ids("zip"), Ids("genres", separator="|"), DenseColumn("age"), Label("label")]
    path = write(tmp_path / "x.csv", text)
    batch = only_batch(path, {"user": "ids", "zip": "text", "age": "float", "label": "bytes"})
    assert batch["user"].to_lists() == [[7], []]
    assert batch["zip"].to_lists() == [[each] for each in text_ids("zip", ["01234", "99"]).tolist()]
    assert str(batch["age"].tolist()) == "[31.0, nan]"
    assert batch["label"] == [b"1", b"0"]
    batch = only_batch(path, wanted)
    assert list(batch) == ["user", "zip", "genres", "age", "label"]
    assert batch["zip"].to_lists() == [[1234], [99]]
    assert batch["genres"].to_lists() == [text_ids("genres", ["Action", "Comedy"]).tolist(), []]
    assert batch["age"].tolist() == [[31], [0]]
    assert batch["label"].tolist() == [[1], [0]]


def test_empty_cells_are_missing_and_quoted_ones_are_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", 'user,price\nann,1.0\n,NA\nNA,2\n"NA",3\n"",4\n')
    batch = only_batch(path)
    assert batch["user"].lengths().tolist() == [1, 0, 0, 1, 1]
    assert batch["user"].values.tolist() == text_ids("user", ["ann", "NA", ""]).tolist()
    assert str(batch["price"].tolist()) == "[1.0, nan, 2.0, 3.0, 4.0]"
    batch = only_batch(path, {"user": "ids", "price": "text"}, missing=["ann"])
    assert batch["user"].lengths().tolist() == [0, 1, 1, 1, 1]
    assert batch["price"].values.tolist() == text_ids("price", ["1.0", "NA", "2", "3", "4"]).tolist()


@pytest.mark.parametrize(("name", "separator"), [("x.tsv", "\t"), ("x.txt", "|"), ("x.csv", ";"), ("x.tsv.gz", "\t")])
def test_what_stands_between_cells_is_found(tmp_path: Path, name: str, separator: str) -> None:
    data = f'a{separator}"b,c"\n1{separator}x,y\n'.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    batch = only_batch(path)
    assert list(batch) == ["a", "b,c"]
    assert batch["b,c"].values.tolist() == text_ids("b,c", ["x,y"]).tolist()


def test_files_without_a_line_of_names_need_names(tmp_path: Path) -> None:
    path = write(tmp_path / "u.data", "196\t242\t3\n186\t302\t3\n")
    with pytest.raises(
        InvalidArgumentError, match=r"u.data': its first line holds values.*'196\\t242\\t3'; give names"
    ):
        list(CsvDataset(path))
    batch = only_batch(path, names=["user", "item", "rating"])
    assert plain(batch) == {"user": [196, 186], "item": [242, 302], "rating": [3, 3]}
    with pytest.raises(InvalidArgumentError, match="names of their own, got a twice"):
        CsvDataset(path, names=["a", "a", "b"])


def test_the_files_of_pandas_are_read_with_their_numbers_of_rows(tmp_path: Path) -> None:
    pd.DataFrame({"user": ["a", "b"], "note": ["two\nlines", 'a "word"']}).to_csv(tmp_path / "x.csv")
    batch = only_batch(tmp_path / "x.csv", newlines_in_values=True)
    assert list(batch) == ["column_0", "user", "note"]
    assert batch["note"].values.tolist() == text_ids("note", ["two\nlines", 'a "word"']).tolist()


def test_other_encodings_are_named_and_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes("title,n\nZoë,1\nAmélie,2\n".encode("latin-1"))
    with pytest.raises(DataLossError, match=r"x.csv': line 2: column 'title': .*invalid UTF8.*encoding='latin-1'"):
        list(CsvDataset(path))
    batch = only_batch(path, encoding="latin-1")
    assert batch["title"].values.tolist() == text_ids("title", ["Zoë", "Amélie"]).tolist()
    marked = tmp_path / "marked.csv"
    marked.write_bytes("title,n\nx,1\n".encode("utf-8-sig"))
    assert list(only_batch(marked)) == ["title", "n"]


def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path: Path) -> None:
    lines = [f"{row},{row}" for row in range(40_000)]
    lines[30_000] = "30000,later a text"
    lines[35_000] = "1,2,3"
    path = write(tmp_path / "x.csv", "a,b\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataLossError, match=r"x.csv': line 30002: column 'b': .*invalid value 'later a text'; set col"):
        list(CsvDataset(path, {"a": "int", "b": "int"}, block_bytes=1 << 17))
    bad = BadRecords(limit=2)
    dataset = CsvDataset(path, {"a": "int", "b": "int"}, block_bytes=1 << 17, bad=bad)
    numbers = [n for batch in read_all(dataset) for n in batch["a"]]
    assert numbers == [row for row in range(40_000) if row not in {30_000, 35_000}]
    assert bad.count == 2
    assert "line 35002: expected 2 cells, got 3: '1,2,3'" in bad.first[1]
    assert len(list(CsvDataset(path, {"a": "int", "b": "text"}, bad=BadRecords(limit=1)))) == 1


def test_a_reading_that_has_raised_does_not_look_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b\n1,2\n3\n")
    dataset = CsvDataset(path)
    with dataset.read() as reading:
        for _ in range(2):
            with pytest.raises(DataLossError, match="line 3: expected 2 cells, got 1"):
                next(reading)
        with pytest.raises(DataLossError, match="line 3: expected 2 cells, got 1"):
            read_all(dataset, reading.position)


@given(
    st.lists(st.tuples(st.text(max_size=8), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=30),
    st.integers(1, 60),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_texts_round_trip_whatever_the_blocks_and_wherever_reading_resumes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]], block: int, is_compressed: bool
) -> None:
    path = tmp_path_factory.mktemp("csv") / ("x.csv.gz" if is_compressed else "x.csv")
    rows = [(text.replace("\0", "").encode("utf-8", "ignore").decode(), number) for text, number in rows]
    with (gzip.open if is_compressed else open)(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(["text", "number"])
        writer.writerows(rows)
    dataset = CsvDataset(path, {"text": "bytes", "number": "int"}, newlines_in_values=True, block_bytes=block)
    found: list[tuple[bytes, int]] = []
    with dataset.read() as reading:
        positions = [reading.position]
        for batch in reading:
            found += zip(batch["text"], batch["number"].tolist(), strict=True)  # type: ignore[arg-type, union-attr]
            positions.append(reading.position)
    # A carriage return is a line end to Arrow where a text is quoted, too.
    assert [number for _, number in found] == [number for _, number in rows]
    assert [text for text, _ in found if b"\r" not in text] == [text.encode() for text, _ in rows if "\r" not in text]
    everything = read_all(dataset)
    for number, position in enumerate(positions):
        assert read_all(dataset, position) == everything[number:]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_batches_resume_from_any_position_in_the_middle_of_a_file(tmp_path: Path, suffix: str) -> None:
    opened = gzip.open if suffix.endswith(".gz") else open
    for part in range(3):
        many_rows(tmp_path / f"part-{part}{suffix}", 300, opened=opened)
    files = FileSet(tmp_path / f"*{suffix}", seed=1)
    dataset = CsvDataset(files, block_bytes=700, cycle_length=2).shuffle(100).batch(64)
    everything = read_all(dataset)
    assert sorted(n for batch in everything for n in batch["number"]) == sorted(list(range(300)) * 3)
    with dataset.read() as reading:
        for number in range(len(everything)):
            assert read_all(dataset, reading.position) == everything[number:]
            next(reading)


def test_workers_share_the_files(tmp_path: Path) -> None:
    for part in range(5):
        many_rows(tmp_path / f"{part}.csv", 10 * (part + 1))
    rows = [
        sum(batch.num_rows for batch in CsvDataset(FileSet(tmp_path / "*.csv", shard=(worker, 2))))
        for worker in range(2)
    ]
    assert rows == [90, 60]


def test_urls_are_read() -> None:
    memory = fsspec.filesystem("memory")
    with memory.open("/own/x.csv", "wb") as file:
        file.write(b"a\n1\n2\n")
    try:
        assert read_all(CsvDataset("memory://own/*.csv")) == [{"a": [1, 2]}]
    finally:
        memory.store.clear()


def test_columns_may_stand_in_another_order_in_another_file(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "a,b\n1,2\n")
    write(tmp_path / "2.csv", "b,new,a\n20,x,10\n")
    assert read_all(CsvDataset(tmp_path / "*.csv").batch(2)) == [{"a": [1, 10], "b": [2, 20]}]
    write(tmp_path / "3.csv", "a\n1\n")
    with pytest.raises(InvalidArgumentError, match=r"3.csv': there is no column 'b'; it has a"):
        read_all(CsvDataset(tmp_path / "*.csv"))


def test_files_with_nothing_in_them_have_no_rows(tmp_path: Path) -> None:
    assert list(CsvDataset(write(tmp_path / "head.csv", "a,b\n"))) == []
    assert list(CsvDataset(write(tmp_path / "empty.csv", ""))) == []
    assert read_all(CsvDataset(write(tmp_path / "gap.csv", "a,b\n1,2\n\n3,4"))) == [{"a": [1, 3], "b": [2, 4]}]


def test_a_line_longer_than_a_block_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b\n1," + "x" * 3_000_000 + "\n2,y\n")
    assert [number for batch in read_all(CsvDataset(path, block_bytes=1 << 20)) for number in batch["a"]] == [1, 2]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"delimiter must be one character, got '::'.*sed"):
        CsvDataset(path, delimiter="::")
    with pytest.raises(InvalidArgumentError, match="there is no column 'c'; it has a, b"):
        list(CsvDataset(path, ["c"]))
    with pytest.raises(NotFoundError, match="no such file"):
        list(CsvDataset(tmp_path / "none.csv"))
    with pytest.raises(InvalidArgumentError, match=r"expected offset and line to resume from, got \[3\]"):
        CsvDataset(path).open_file(str(path), [3])


def test_a_file_that_was_cut_after_the_position_was_saved_is_named(tmp_path: Path) -> None:
    path = many_rows(tmp_path / "x.csv", 100)
    dataset = CsvDataset(path, block_bytes=500)
    with dataset.read() as reading:
        next(reading)
        next(reading)
        saved = reading.position
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataLossError, match=r"x.csv': it ends at byte 100, and was read up to byte"):
        read_all(dataset, saved)


def test_a_dataset_travels_to_another_process(tmp_path: Path) -> None:
    path = many_rows(tmp_path / "x.csv", 50)
    dataset = CsvDataset(path, [Ids("user"), "number"], bad=BadRecords(limit=3))
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - just written
    assert read_all(again) == read_all(dataset)
    assert isinstance(next(iter(again))["user"], Ragged)
