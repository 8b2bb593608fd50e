"""Parquet files hold what the table holds."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from monolith.errors import NotFoundError
from monolith.tables import HashTable, Segment, TableConfig, compressors
from monolith.tables.formats import parquet
from monolith.tables.formats.parquet import export_parquet
from tables.snapshot_cases import item_config, some_ids, state_of, train, trained_group

reader = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("state", [True, False])
def test_a_file_holds_ids_times_weights_and_state(tmp_path: Path, state: bool) -> None:
    group = trained_group()
    table = group["user"]
    assert export_parquet(table, tmp_path / "rows.parquet", state=state) == len(table)
    rows = reader.read_table(tmp_path / "rows.parquet")
    assert rows.column_names == ["id", "time", "weights", *(["state"] if state else [])]
    assert str(rows.schema.field("id").type) == "int64"
    assert str(rows.schema.field("time").type) == "int64"
    assert rows.schema.field("weights").type.list_size == table.dim
    expected = state_of(table)
    assert rows.num_rows == len(expected)
    for row in rows.to_pylist():
        weights, saved_state, time = expected[row["id"]]
        assert np.array(row["weights"], np.float32).tobytes() == weights
        assert row["time"] == time
        assert not state or row["state"] == saved_state


def test_an_empty_table_is_an_empty_file(tmp_path: Path) -> None:
    assert export_parquet(HashTable(item_config()), tmp_path / "rows.parquet") == 0
    assert reader.read_table(tmp_path / "rows.parquet").num_rows == 0


def test_serving_rows_are_decompressed(tmp_path: Path) -> None:
    table = HashTable(TableConfig([Segment(2, compressor=compressors.FixedR8())], name="s", serving=True))
    ids = some_ids(40)
    table.assign(ids, np.random.default_rng(1).uniform(-1, 1, (len(ids), 2)).astype(np.float32), time=3)
    export_parquet(table, tmp_path / "rows.parquet", state=True)
    rows = reader.read_table(tmp_path / "rows.parquet")
    assert rows.column_names == ["id", "time", "weights"]
    weights = {row["id"]: row["weights"] for row in rows.to_pylist()}
    assert [weights[key] for key in ids.tolist()] == np.asarray(table.lookup(ids)).tolist()


def test_rows_are_streamed_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP_BYTES", 20_000)
    table = HashTable(item_config())
    train(table, some_ids(2000))
    export_parquet(table, tmp_path / "rows.parquet")
    file = reader.ParquetFile(tmp_path / "rows.parquet")
    assert file.num_row_groups > 3
    assert file.metadata.num_rows == len(table)
    assert file.schema_arrow.metadata[b"monolith.table"] == b"item"


def test_a_failed_export_leaves_no_file_and_no_open_cut(tmp_path: Path) -> None:
    table = HashTable(item_config())
    with pytest.raises(NotFoundError, match=r"nowhere/rows\.parquet"):
        export_parquet(table, tmp_path / "nowhere" / "rows.parquet")
    export_parquet(table, tmp_path / "rows.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_without_pyarrow_the_message_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'monolith-torch\[parquet\]'"):
        export_parquet(HashTable(item_config()), tmp_path / "rows.parquet")
