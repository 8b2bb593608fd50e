"""Records of JSON become batches, as lines of JSON do."""

from __future__ import annotations

import json
import pickle

import pytest

from data.pipelines import plain, read_all
from monolith.data import BadRecords, Ids, InMemoryDataset, JsonParser, Label, Records, text_ids
from monolith.errors import DataLossError

RECORDS = [
    json.dumps({"user": "ann", "tags": ["a", "b"], "clicked": 1, "other": {"x": 1}}, indent=1).encode(),
    json.dumps({"user": None, "tags": [], "clicked": 0}).encode(),
    json.dumps({"clicked": 1}).encode(),
]
COLUMNS = [Ids("user"), Ids("tags"), Label("clicked")]


def test_records_become_the_requested_columns() -> None:
    batch = JsonParser(COLUMNS).parse(RECORDS)
    assert plain(batch) == {
        "user": [text_ids("user", ["ann"]).tolist(), [], []],
        "tags": [text_ids("tags", ["a", "b"]).tolist(), [], []],
        "clicked": [[1.0], [0.0], [1.0]],
    }
    assert JsonParser(COLUMNS).parse([]).num_rows == 0


def test_a_dataset_of_records_is_parsed_and_travels() -> None:
    dataset = InMemoryDataset([Records.from_list(RECORDS)]).batch(2).parse(JsonParser(COLUMNS))
    assert [len(batch["user"]) for batch in read_all(dataset)] == [2, 1]
    assert repr(dataset).endswith(".batch(2).parse(user, tags, clicked)")
    assert read_all(pickle.loads(pickle.dumps(dataset))) == read_all(dataset)  # noqa: S301 - just written


def test_a_field_that_comes_late_has_the_type_of_its_first_values() -> None:
    parser = JsonParser({"a": "int", "b": "ids"})
    assert plain(parser.parse([b'{"a": 1}'])) == {"a": [1], "b": [[]]}
    assert plain(parser.parse([b'{"a": 2, "b": 7}'])) == {"a": [2], "b": [[7]]}


@pytest.mark.parametrize("bad_record", [b'{"a": ', b"[1]", b'{"a": "x"}', b"", b'{"a": 1} {"a": 2}'])
def test_a_bad_record_is_named_or_skipped(bad_record: bytes) -> None:
    records = [b'{"a": %d}' % number for number in range(50)]
    records[33] = bad_record
    with pytest.raises(DataLossError, match="record 33: "):
        JsonParser({"a": "int"}).parse(records)
    bad = BadRecords(limit=1)
    assert JsonParser({"a": "int"}, bad=bad).parse(records)["a"].tolist() == [n for n in range(50) if n != 33]  # type: ignore[union-attr]
    assert bad.count == 1


def test_no_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="expected columns, got none"):
        JsonParser([])
