"""Tables of Arrow, pandas, polars and Hugging Face as datasets."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import datasets
from data.pipelines import read_all
from monolith.data import CsvDataset, Ids, from_arrow, from_huggingface, from_pandas, from_polars, text_ids
from monolith.errors import UnimplementedError

COLUMNS: dict[str, Any] = {
    "user": ["a", None, "b"],
    "price": [0.5, None, 2.0],
    "tags": [["x"], [], ["y", "x"]],
    "n": [1, 2, 3],
}
A, B = text_ids("user", ["a", "b"]).tolist()
X, Y = text_ids("tags", ["x", "y"]).tolist()


def expected_of(batch: dict[str, Any]) -> None:
    assert batch["user"] == [[A], [], [B]]
    assert str(batch["price"]) == "[0.5, nan, 2.0]"
    assert batch["tags"] == [[X], [], [Y, X]]
    assert batch["n"] == [1, 2, 3]


@pytest.mark.parametrize(
    "dataset",
    [
        from_arrow(pa.table(COLUMNS)),
        from_arrow(pa.RecordBatch.from_pydict(COLUMNS)),
        from_arrow([pa.RecordBatch.from_pydict(COLUMNS)]),
        from_arrow(pa.RecordBatchReader.from_batches(pa.table(COLUMNS).schema, pa.table(COLUMNS).to_batches())),
        from_arrow(pl.DataFrame(COLUMNS)),  # by Arrow's own interface
        from_pandas(pd.DataFrame(COLUMNS)),
        from_polars(pl.DataFrame(COLUMNS)),
        from_polars(pl.LazyFrame(COLUMNS)),
        from_huggingface(datasets.Dataset.from_dict(COLUMNS)),
    ],
)
def test_every_table_gives_the_same_batch(dataset: Any) -> None:
    (batch,) = read_all(dataset)
    expected_of(batch)
    (batch,) = read_all(pickle.loads(pickle.dumps(dataset)))  # noqa: S301 - just written
    expected_of(batch)


def test_categories_are_their_texts() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["u", None, "v", "u"], categories=["v", "u", "w"])})
    u, v = text_ids("c", ["u", "v"]).tolist()
    assert read_all(from_pandas(frame)) == [{"c": [[u], [], [v], [u]]}]
    assert read_all(from_polars(pl.DataFrame({"c": ["u", None]}, schema={"c": pl.Categorical})))[0]["c"] == [[u], []]


def test_a_column_of_mixed_values_is_read_as_text(caplog: pytest.LogCaptureFixture) -> None:
    (batch,) = read_all(from_pandas(pd.DataFrame({"mixed": [1, "x", None], "n": [1, 2, 3]})))
    one, x = text_ids("mixed", ["1", "x"]).tolist()
    assert batch == {"mixed": [[one], [x], []], "n": [1, 2, 3]}
    assert "column 'mixed' is read as text" in caplog.text


def test_integers_that_pandas_converted_to_floats_can_be_ids() -> None:
    frame = pd.DataFrame({"user": [2**40 + 1, None]})
    assert read_all(from_pandas(frame, {"user": "ids"})) == [{"user": [[2**40 + 1], []]}]


def test_the_order_of_a_shuffled_dataset_is_kept() -> None:
    shuffled = datasets.Dataset.from_dict({"n": list(range(100))}).shuffle(seed=3).select(range(50))
    found = [n for batch in read_all(from_huggingface(shuffled, block_rows=7)) for n in batch["n"]]
    assert found == shuffled["n"][:]
    assert found != sorted(found)


def test_positions_and_shares_hold_every_row_once() -> None:
    table = pa.table({"n": list(range(100))})
    dataset = from_arrow(table, block_rows=7).batch(10)
    everything = read_all(dataset)
    with dataset.read() as reading:
        for number in range(len(everything)):
            assert read_all(dataset, reading.position) == everything[number:]
            next(reading)
    shares = [read_all(from_arrow(table, block_rows=7, shard=(worker, 3))) for worker in range(3)]
    assert sorted(n for share in shares for batch in share for n in batch["n"]) == list(range(100))
    with pytest.raises(ValueError, match=r"shard must be .* got \(3, 3\)"):
        from_arrow(table, shard=(3, 3))


def test_columns_may_be_chosen() -> None:
    assert list(read_all(from_arrow(pa.table(COLUMNS), ["n", Ids("user")]))[0]) == ["n", "user"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_arrow({"a": [1]}), "expected a table or record batches of pyarrow, got a dict"),
        (lambda: from_pandas(pl.DataFrame({"a": [1]})), "expected a pandas.DataFrame, got a DataFrame"),
        (lambda: from_polars([1]), "expected a polars.DataFrame or LazyFrame, got a list"),
        (
            lambda: from_huggingface(datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": [1]})})),
            r"'train'\]",
        ),
        (
            lambda: from_huggingface(datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset()),
            "load it without streaming=True",
        ),
    ],
)
def test_what_is_no_such_table_is_refused(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(UnimplementedError, match=r"CSV files need pyarrow; run: pip install 'monolith-torch\[csv\]'"):
        CsvDataset("x.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UnimplementedError, match=r"from_pandas needs pyarrow; run: pip install 'monolith-torch\[pandas\]'"
    ):
        from_pandas(pd.DataFrame())
