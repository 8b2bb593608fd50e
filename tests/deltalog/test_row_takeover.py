"""A base takes the place of rows that others read: each of them is there all the time, and none is left over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from monolith.deltalog.follow.base_state import load_rows_of
from monolith.errors import DataLossError
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.snapshot.save import save

NUM_ROWS = 30_000


def new_store(*, serving: bool = True) -> LocalStore:
    columns = [Segment(2)]
    return LocalStore({name: TableConfig(columns, serving=serving) for name in ("item", "user")})


def saved(folder: Path, rows: dict[str, dict[int, float]]) -> str:
    store = new_store(serving=False)
    assign(store, rows)
    save(store, str(folder))
    return str(folder)


def assign(store: LocalStore, rows: dict[str, dict[int, float]]) -> None:
    for name, each in rows.items():
        values = torch.tensor(list(each.values()), dtype=torch.float32)
        TableGroup.of_store(store)[name].assign(list(each), values[:, None].expand(-1, 2), time=100)


def contents(store: LocalStore) -> dict[str, dict[int, float]]:
    group = TableGroup.of_store(store)
    found = {}
    for name in store.schema.names:
        ids = group[name].ids().tolist()
        found[name] = dict(zip(ids, group[name].lookup(ids)[:, 0].tolist(), strict=True))
    return found


def taken_over(folder: Path, before: dict[str, dict[int, float]], *, buckets: range = ALL_BUCKETS) -> LocalStore:
    """A serving store that had some rows, and has those of a snapshot now."""
    store = new_store()
    load_rows_of(store, saved(folder / "before", before), buckets=ALL_BUCKETS)
    load_rows_of(store, saved(folder / "after", AFTER), buckets=buckets)
    return store


BEFORE = {"item": {1: 1.0, 2: 2.0, -(2**63): 3.0}, "user": {2**63 - 1: 4.0}}
AFTER = {"item": {2: 20.0, 7: 70.0}, "user": {}}


def test_rows_are_those_of_the_snapshot_and_no_others(tmp_path: Path) -> None:
    assert contents(taken_over(tmp_path, BEFORE)) == AFTER


def test_other_buckets_stay_as_they_are(tmp_path: Path) -> None:
    halves = (range(512), range(512, 1024))
    first, second = (contents(taken_over(tmp_path / str(n), BEFORE, buckets=half)) for n, half in enumerate(halves))
    for name, before in BEFORE.items():
        for key in before.keys() | AFTER[name].keys():
            seen = {first[name].get(key), second[name].get(key)}
            assert seen == {before.get(key), AFTER[name].get(key)}, "one half of the buckets has it, one has not"


def test_a_damaged_snapshot_leaves_the_rows_as_they_were(tmp_path: Path) -> None:
    store = taken_over(tmp_path, BEFORE)
    folder = Path(saved(tmp_path / "damaged", BEFORE))
    file = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(DataLossError):
        load_rows_of(store, str(folder), buckets=ALL_BUCKETS)
    assert contents(store) == AFTER


def test_a_concurrent_reader_finds_every_row(tmp_path: Path) -> None:
    ids = torch.arange(NUM_ROWS)
    snapshots = [saved(tmp_path / str(each), {"item": dict.fromkeys(range(NUM_ROWS), each)}) for each in (1.0, 2.0)]
    store = new_store()
    load_rows_of(store, snapshots[0], buckets=ALL_BUCKETS)
    table = TableGroup.of_store(store)["item"]
    least: list[float] = []
    has_read, done = threading.Event(), threading.Event()

    def read() -> None:
        while not done.is_set():
            least.append(table.lookup(ids).min().item())
            has_read.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in (1, 0, 1):
            has_read.clear()
            assert has_read.wait(60)
            load_rows_of(store, snapshots[number], buckets=ALL_BUCKETS)
    finally:
        done.set()
        reader.join()
    assert min(least) == 1.0
    assert set(contents(store)["item"].values()) == {2.0}
