"""JSON lines as batches: types, missing and odd fields, bad lines, positions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from data.pipelines import read_all
from monolith.data import BadRecords, DenseColumn, Ids, JsonLinesDataset, text_ids
from monolith.errors import DataLossError, InvalidArgumentError


def write(path: Path, rows: list[Any]) -> Path:
    data = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_fields_become_columns_and_missing_ones_follow_the_rule(tmp_path: Path) -> None:
    rows = [
        {
            "user": "ann",
            "tags": ["a", None, "b"],
            "n": 1,
            "price": 2,
            "flag": True,
            "path": [1, 2],
            "when": "2024-01-01",
        },
        {"user": None, "price": 0.5, "flag": False, "n": 2, "path": []},
        {"user": "", "tags": [], "n": 3, "flag": True, "when": "x"},
    ]
    (batch,) = JsonLinesDataset(write(tmp_path / "x.jsonl", rows))
    ann, empty = text_ids("user", ["ann", ""]).tolist()
    assert batch["user"].to_lists() == [[ann], [], [empty]]  # type: ignore[union-attr]
    assert batch["tags"].to_lists() == [text_ids("tags", ["a", "b"]).tolist(), [], []]  # type: ignore[union-attr]
    assert batch["path"].to_lists() == [[1, 2], [], []]  # type: ignore[union-attr]
    assert batch["n"].tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert str(batch["price"].tolist()) == "[2.0, 0.5, nan]"  # type: ignore[union-attr]
    assert batch["flag"].tolist() == [1, 0, 1]  # type: ignore[union-attr]
    assert batch["when"].lengths().tolist() == [1, 0, 1]  # type: ignore[union-attr]


def test_a_field_of_objects_or_of_several_kinds_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"a": 1, "b": {"c": 1}, "d": 1, "e": [1, "x"]}, {"a": 2, "b": {"c": 2}, "d": "x", "e": []}]
    path = write(tmp_path / "x.jsonl", rows)
    assert read_all(JsonLinesDataset(path)) == [{"a": [1, 2]}]
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "field 'b' is skipped: it holds object",
        "field 'd' is skipped: it holds int and text",
        "field 'e' is skipped: it holds list of nothing and mixed list",
    ]
    with pytest.raises(InvalidArgumentError, match="there is no column 'b'; it has a"):
        read_all(JsonLinesDataset(path, ["b"]))


def test_requested_columns_are_made(tmp_path: Path) -> None:
    rows = [{"user": 7, "zip": 1234, "genres": "a|b", "age": 3}, {"zip": None, "genres": None, "age": 4}]
    wanted = [Ids("user"), Ids("genres", separator="|"), DenseColumn("age")]
    path = write(tmp_path / "x.jsonl", rows)
    assert read_all(JsonLinesDataset(path, wanted)) == [
        {"user": [[7], []], "genres": [text_ids("genres", ["a", "b"]).tolist(), []], "age": [[3.0], [4.0]]}
    ]
    assert read_all(JsonLinesDataset(path, {"zip": "text", "age": "float"})) == [
        {"zip": [text_ids("zip", ["1234"]).tolist(), []], "age": [3.0, 4.0]}
    ]


def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path: Path) -> None:
    rows: list[Any] = [{"a": number} for number in range(20_000)]
    rows[12_000] = '{"a": 12'
    rows[13_000] = {"a": "later a text"}
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(DataLossError, match=r"x.jsonl': line 12001: "):
        read_all(JsonLinesDataset(path))
    bad = BadRecords(limit=2)
    numbers = [n for batch in read_all(JsonLinesDataset(path, bad=bad)) for n in batch["a"]]
    assert numbers == [number for number in range(20_000) if number not in {12_000, 13_000}]
    assert "line 13001: " in bad.first[1]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_reading_resumes_from_any_position(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [{"number": number, "user": f"u{number % 5}"} for number in range(200)])
    dataset = JsonLinesDataset(path, block_bytes=500).batch(16)
    everything = read_all(dataset)
    assert [n for batch in everything for n in batch["number"]] == list(range(200))
    with dataset.read() as reading:
        for number in range(len(everything)):
            assert read_all(dataset, reading.position) == everything[number:]
            next(reading)


def test_files_with_nothing_in_them_have_no_rows(tmp_path: Path) -> None:
    assert read_all(JsonLinesDataset(write(tmp_path / "x.jsonl", []))) == []
    assert read_all(JsonLinesDataset(write(tmp_path / "y.jsonl", ["", {"a": 1}, "", ""]), block_bytes=3)) == [
        {"a": [1]}
    ]
