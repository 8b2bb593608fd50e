"""Every row of the suite `sync` runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.suites.sync.task import batches_of, row_numbers
from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.setting import Setting
from programs import Programs

Run = Callable[[str, str], subprocess.CompletedProcess[str]]
TINY = Setting(small_rows=1500, large_rows=3000, examples=8, num_batches=3, rounds=1, seconds=0.02)

_MEASURE = """
import json, sys
from benchmarks.suites.catalog import ROW_OF_KEY
from monolith.cli._bench import runner
from monolith.cli._bench.setting import Setting

print(json.dumps(runner.measure_row(Setting.from_json(json.loads(sys.argv[2])), ROW_OF_KEY[sys.argv[1]].function)))
"""
_BEGIN = """
import json, sys
from benchmarks.suites.sync.rank_processes import running_ranks
from monolith.cli._bench.setting import Setting

with running_ranks(sys.argv[1], Setting.from_json(json.loads(sys.argv[2])), count=1):
    pass
"""


@pytest.fixture
def run(tmp_path: Path, programs: Programs) -> Run:
    """Runs a text as a program with a name and small sizes: a row sets threads and cores of its process."""

    def run(text: str, name: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(text, encoding="utf-8")
        return programs.run(tmp_path / "program.py", name, json.dumps(TINY.to_json()), folder=tmp_path)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("key", ["sync_exchange", "sync_training"])  # the script has the other one
def test_the_row_measures(key: str, run: Run) -> None:
    if key == "sync_training" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = run(_MEASURE, key)
    assert done.returncode == 0, done.stderr
    measurements = [Measurement.from_json(fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    assert any(each.ok is not None for each in measurements)
    assert {each.row for each in measurements} == {key}
    assert all(each.figure is not None for each in measurements)
    assert len({(each.measure, each.peer) for each in measurements}) == len(measurements)


@pytest.mark.slow
def test_the_script_prints_chosen_rows_as_json(project_root: Path, programs: Programs) -> None:
    arguments = ("--suite", "sync", "--rows", "sync_collective", "--quick", "--rounds", "1", "--json")
    done = programs.run(Path("benchmarks/run.py"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["measurements"]
    assert [row["requirement"] for row in rows] == ["<= 1.1 x", ""]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torchrec") is not None, reason="torchrec is here")
def test_torchrec_is_skipped_with_a_reason_where_it_is_missing(run: Run) -> None:
    done = run(_BEGIN, "torchrec_collection")
    assert done.returncode == 1
    assert "RowSkippedError: torchrec is not installed" in done.stderr


def test_a_rank_that_exits_is_reported(run: Run) -> None:
    done = run(_BEGIN, "no_such")
    assert done.returncode == 1
    assert "No module named 'benchmarks.suites.sync.ranks.no_such'" in done.stderr
    assert "RuntimeError: a rank of the benchmark ended" in done.stderr


def test_the_global_batch_is_that_of_all_ranks_end_to_end() -> None:
    (first, *_), (one, *_), (other, *_) = (batches_of(TINY, ranks) for ranks in ([0, 1], [0], [1]))
    assert torch.equal(first["slot_3"], torch.cat([one["slot_3"], other["slot_3"]]))
    assert torch.equal(first["label"], torch.cat([one["label"], other["label"]]))
    assert not torch.equal(one["slot_3"], other["slot_3"])


def test_row_numbers_and_ids_stand_for_the_same_rows() -> None:
    rows, label = row_numbers(TINY, 0)[0]
    batch = batches_of(TINY, [0])[0]
    for slot in range(TINY.features):
        assert len(set(rows[slot].tolist())) == len(set(batch[f"slot_{slot}"].tolist()))
    assert torch.equal(label, batch["label"])
