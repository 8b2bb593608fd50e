"""Every row of the suite `ps` runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from benchmarks.suites.catalog import ROW_OF_KEY, SUITES
from benchmarks.suites.ps import cpu, cut, fan_out, scale
from benchmarks.suites.ps.worker import Turn
from benchmarks.suites.table_steps import TableSteps, configs, fill, gradient_of
from monolith.cli._bench import runner
from monolith.cli._bench.measurement import Measurement, RowSkippedError
from monolith.cli._bench.setting import Setting
from monolith.cli._bench.workload import WorkloadBatch, zipf_batches
from monolith.tables import LocalStore
from programs import Programs

TINY = Setting(small_rows=1500, large_rows=3000, examples=8, num_batches=3, rounds=1, seconds=0.02)


@pytest.fixture
def few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two where the row has many, on the cores that there are; what it finds then is not of interest here."""
    monkeypatch.setattr(scale, "CORES", len(os.sched_getaffinity(0)))
    monkeypatch.setattr(scale, "MANY", 2)
    monkeypatch.setattr(fan_out, "MANY", 2)
    monkeypatch.setattr(cut, "WORKERS", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("few_processes")
@pytest.mark.parametrize("key", [row.key for row in SUITES["ps"].rows])
@pytest.mark.usefixtures("forked_starts")
def test_the_row_measures(key: str) -> None:
    if key in {"ps_cpu", "ps_dense"} and shutil.which("c++") is None:
        pytest.skip("the socket loop is compiled in the run and there is no compiler")
    if key in {"ps_wall", "ps_training"} and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    measurements = [Measurement.from_json(fields) for fields in runner.measure_row(TINY, ROW_OF_KEY[key].function)]
    assert any(each.ok is not None for each in measurements)
    assert {each.row for each in measurements} == {key}
    assert all(each.figure is not None for each in measurements)
    assert len({(each.measure, each.peer) for each in measurements}) == len(measurements)


@pytest.mark.slow
def test_the_script_prints_selected_rows_as_json_and_reports_what_it_skips(
    project_root: Path, programs: Programs
) -> None:
    arguments = ("--suite", "ps", "--rows", "ps_scale", "--quick", "--json")
    done = programs.run(Path("benchmarks/run.py"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["measurements"]
    assert row["row"] == "ps_scale"
    if len(os.sched_getaffinity(0)) < 16:
        assert row["note"].startswith("skipped: needs 16 cores")


def test_servers_are_skipped_with_a_reason_where_grpc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RowSkippedError, match=r"monolith-torch\[ps\]"):
        fan_out.measure(TINY)


def test_prefetched_steps_and_sequential_steps_make_the_same_updates() -> None:
    gradient, batches = gradient_of(TINY), zipf_batches(TINY, TINY.small_rows)
    stores = [LocalStore(configs()), LocalStore(configs())]
    for store in stores:
        fill(store, TINY.small_rows)
    in_turn, ahead = (TableSteps(store, 0, gradient) for store in stores)
    for batch in batches:
        in_turn.train(batch)
        ahead.train_ahead(batch)
    ahead.train_ahead(batches[0])  # read ahead, and given up by settle
    ahead.settle()
    everything = torch.cat([batch.ids for batch in batches])
    rows = []
    for store in stores:
        assert store.stats().open_plans == 0
        assert store.stats().applied[0] == len(batches) - 1
        look = TableSteps(store, 1, gradient)._plan(everything)
        rows.append(store.read(look, step=0).result().values)
    assert torch.equal(*rows)


def test_the_bytes_of_a_step_are_those_of_its_distinct_ids() -> None:
    ids = torch.tensor([5, 5, 7])
    size = cpu.bytes_of([WorkloadBatch(rows=ids, ids=ids)])
    assert size == (16, 128, 128)


def test_a_stall_is_what_a_step_at_the_cut_takes_beyond_the_usual_step() -> None:
    steady, struck = Turn([0.0, 0.01, 0.02, 0.03, 0.04]), Turn([0.0, 0.01, 0.02, 0.07, 0.08])
    assert cut._stall([steady, struck], (0.025, 0.03)) == pytest.approx(40.0)
    assert steady.rate == pytest.approx(100.0)
