"""A checkpoint does not know how many shards the rows were divided among, when it was saved or when it is restored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint.runs import Run, tables_of, whole
from monolith.checkpoint import Saver
from monolith.checkpoint.restore.store_restore import restore_table_assets, save_table_assets
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.tables import LocalShards, LocalStore

PARTS = [0, 3, 5]


def run_of(num_shards: int, **options: Any) -> Run:
    store = partial(LocalShards, num_shards=num_shards) if num_shards else LocalStore
    with use_table_defaults(TableDefaults(store=store)):
        run = Run(**options)
    assert isinstance(run.model.emb.store, LocalShards if num_shards else LocalStore)
    return run


def save(run: Run, folder: Path) -> None:
    with Saver(folder) as saver:
        saver.save(run.state)


@pytest.mark.parametrize("after", PARTS)
@pytest.mark.parametrize("before", PARTS)
def test_a_run_resumes_bit_for_bit_with_any_number_of_shards(tmp_path: Path, before: int, after: int) -> None:
    run = run_of(before, min_count=2)
    run.steps(6)
    save(run, tmp_path)
    at_save = whole(run)
    losses = run.steps(5)
    other = run_of(after, seed=9, min_count=2)
    other.steps(2)  # what it has is replaced
    Saver(tmp_path).restore(other.state)
    assert whole(other) == at_save
    assert other.steps(5) == losses
    assert whole(other) == whole(run)


def test_files_hold_the_buckets_of_their_owners_and_the_rows_of_all(tmp_path: Path) -> None:
    for number in PARTS:
        run = run_of(number)
        run.steps(6)
        save(run, tmp_path / str(number))
    names = {number: sorted(path.name[8:17] for path in (tmp_path / str(number)).rglob("*.rows")) for number in PARTS}
    assert names[0] == ["0000-1024"]
    assert names[3] == ["0000-0342", "0342-0683", "0683-1024"]
    assert names[5] == ["0000-0205", "0205-0410", "0410-0615", "0615-0820", "0820-1024"]
    counts = [(tmp_path / str(number) / "ckpt.info-6").read_text() for number in PARTS]
    assert counts[0] == counts[1] == counts[2]


def test_a_save_in_the_background_holds_the_cut(tmp_path: Path) -> None:
    run = run_of(3)
    run.steps(4)
    at_save = whole(run)
    with Saver(tmp_path, background=True) as saver:
        saver.save(run.state)
        run.steps(6)
        saver.wait()
    other = run_of(0)
    Saver(tmp_path).restore(other.state)
    assert whole(other) == at_save


@pytest.mark.parametrize("number", [0, 2])
def test_a_damaged_file_of_one_owner_changes_nothing(tmp_path: Path, number: int) -> None:
    run = run_of(3)
    run.steps(4)
    save(run, tmp_path)
    file = sorted(tmp_path.rglob("*.rows"))[number]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for after in PARTS:
        other = run_of(after, seed=5)
        other.steps(3)
        held = whole(other)
        with pytest.raises(DataLossError, match=file.name):
            Saver(tmp_path).restore(other.state, str(tmp_path / "model.ckpt-4"))
        assert whole(other) == held


def test_tables_alone_are_restored_by_any_number_of_shards(tmp_path: Path) -> None:
    run = run_of(3)
    run.steps(4)
    save_table_assets(run.state, str(tmp_path / "model.ckpt-4"))
    for after in PARTS:
        other = run_of(after, seed=3)
        assert restore_table_assets(other.state, str(tmp_path / "model.ckpt")) == str(tmp_path / "model.ckpt-4")
        assert tables_of(other.model.emb.store) == tables_of(run.model.emb.store)


def test_a_save_that_fails_lets_the_cut_of_every_shard_go(tmp_path: Path) -> None:
    run = run_of(3)
    run.steps(2)
    run.model.register_buffer("@reserved", torch.zeros(1))
    with Saver(tmp_path) as saver, pytest.raises(InvalidArgumentError, match="@ is reserved"):
        saver.save(run.state)
    run.model.emb.store.cut().release()
