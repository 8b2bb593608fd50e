"""Every row of benchmarks/sync.py runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.rank_processes import running_ranks
from monolith.cli._bench.setting import Setting
from monolith.cli._bench.skip import RowSkippedError
from monolith.cli._bench.sync_task import batches_of, row_numbers

TINY = Setting(small_rows=1500, large_rows=3000, examples=8, num_batches=3, rounds=1, seconds=0.02)

_MEASURE = """
import json, sys
from monolith.cli._bench import catalog
from monolith.cli._bench.setting import Setting

print(json.dumps(catalog.measure_row(Setting.from_json(json.loads(sys.argv[2])), sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("key", ["sync_exchange", "sync_training"])  # the script has the other one
def test_the_row_measures(key: str) -> None:
    """In a process of its own, as the script has it: a row sets threads and cores of its process."""
    if key == "sync_training" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    command = [sys.executable, "-c", _MEASURE, key, json.dumps(TINY.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measurements = [Measurement.from_json(fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    assert any(each.ok is not None for each in measurements)
    assert {each.row for each in measurements} == {key}
    assert all(each.figure is not None for each in measurements)
    assert len({(each.measure, each.peer) for each in measurements}) == len(measurements)


def test_the_script_prints_chosen_rows_as_json(project_root: Path) -> None:
    command = [sys.executable, "benchmarks/sync.py", "--rows", "sync_collective", "--quick", "--rounds", "1", "--json"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["measurements"]
    assert [row["requirement"] for row in rows] == ["<= 1.1 x", ""]


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is not None, reason="torchrec is here")
def test_torchrec_is_left_out_with_a_reason_where_it_is_missing() -> None:
    with (
        pytest.raises(RowSkippedError, match="torchrec is not installed"),
        running_ranks("torchrec_collection", TINY, count=1),
    ):
        pass


def test_a_rank_that_ends_is_told() -> None:
    with pytest.raises(RuntimeError, match="a rank of the benchmark ended"), running_ranks("no_such", TINY, count=1):
        pass


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
