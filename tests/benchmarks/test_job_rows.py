"""Every row of the suite `cluster` runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.suites.catalog import SUITES
from benchmarks.suites.cluster import home
from monolith.cli._bench.measurement import Measurement
from programs import Programs

_MEASURE = """
import json, sys
from benchmarks.suites.catalog import ROW_OF_KEY
from benchmarks.suites.cluster import save
from monolith.cli._bench import runner
from monolith.cli._bench.setting import Setting

save.WORKERS, save.SAVE_SECONDS = 2, 1  # few where the row has many
tiny = Setting(small_rows=1500, large_rows=3000, examples=8, num_batches=3, rounds=1, seconds=0.02)
print(json.dumps(runner.measure_row(tiny, ROW_OF_KEY[sys.argv[1]].function)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", [row.key for row in SUITES["cluster"].rows if row.key != "job_home"]
)  # the script has that
def test_the_row_measures(key: str, tmp_path: Path, programs: Programs) -> None:
    """In a process of its own, as the script has it: a row sets threads and cores of its process."""
    (tmp_path / "measure.py").write_text(_MEASURE, encoding="utf-8")
    done = programs.run(tmp_path / "measure.py", key, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    measurements = [Measurement.from_json(fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    assert any(each.ok is not None for each in measurements)
    assert {each.row for each in measurements} == {key}
    assert all(each.figure is not None for each in measurements)
    assert len({(each.measure, each.peer) for each in measurements}) == len(measurements)


@pytest.mark.slow
def test_the_script_prints_chosen_rows_as_json(project_root: Path, programs: Programs) -> None:
    arguments = ("--suite", "cluster", "--rows", "job_home", "--quick", "--json")
    done = programs.run(Path("benchmarks/run.py"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["measurements"]
    assert row["requirement"] == ">= 5000 steps/s"


def test_steps_that_were_not_counted_once_stop_the_row() -> None:
    steps = home._EmptySteps([])
    steps._joined, steps._next = [None] * 3, 5  # type: ignore[list-item]  # nobody pushes here
    for counted in (8, 9, 10):
        steps.require_counted(counted)
    for counted in (7, 11):
        with pytest.raises(AssertionError, match=f"counted {counted} steps of the others, expected 8 to 10"):
            steps.require_counted(counted)
