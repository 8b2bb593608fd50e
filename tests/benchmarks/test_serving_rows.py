"""Every row of the suite `serving` runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.setting import Setting
from programs import Programs

TINY = Setting(large_rows=5200, small_rows=5200, rounds=1, seconds=0.02)
LIMITS = {
    "serving_graph": [1.15],
    "serving_layout": [0.4, 0.4, 0.5],
    "serving_load": [0.85, 4.0, 1.5, 0.9, 2.0, 20.0],
    "serving_start": [1.3, 0.4],
}
"""`serving_load` measures what `serving_server` does, too; `serving_ray` needs Ray Serve."""

_MEASURE = """
import json, sys
from benchmarks.suites.catalog import ROW_OF_KEY
from monolith.cli._bench import runner
from monolith.cli._bench.setting import Setting

setting = Setting.from_json(json.loads(sys.argv[2]))
print(json.dumps(runner.measure_row(setting, ROW_OF_KEY[sys.argv[1]].function)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("key", list(LIMITS))
def test_the_row_measures_what_must_be_reached(key: str, tmp_path: Path, programs: Programs) -> None:
    """In a process of its own, as the script has it: a row sets threads and cores of its process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "measure.py").write_text(_MEASURE, encoding="utf-8")
    setting = json.dumps({**TINY.to_json(), "directory": str(disk)})
    done = programs.run(tmp_path / "measure.py", key, setting, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [Measurement.from_json(fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    assert [(each.row, each.limit) for each in found] == [(key, limit) for limit in LIMITS[key]]
    assert all(each.figure is not None and each.figure >= 0 for each in found)
    assert list(disk.iterdir()) == []
