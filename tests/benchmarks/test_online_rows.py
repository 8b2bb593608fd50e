"""Every row of the suite `online` runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.setting import Setting
from programs import Programs

TINY = Setting(large_rows=3000, small_rows=3000, rounds=2, seconds=0.1)
LIMITS: dict[str, list[float | None]] = {
    "online_changes": [20.0, 1.5, 0.25],
    "online_follower": [20.0, 1.0],
    "online_path": [200.0, 6.0, 0.95, 20.0],
    "online_joiner": [2.0 if importlib.util.find_spec("bytewax") else None, 10_000.0],
}

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
    """In a process of its own, as the script has it: a row sets the threads of its process."""
    (tmp_path / "measure.py").write_text(_MEASURE, encoding="utf-8")
    done = programs.run(tmp_path / "measure.py", key, json.dumps(TINY.to_json()), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [Measurement.from_json(fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    assert [(each.row, each.limit) for each in found] == [(key, limit) for limit in LIMITS[key]]
    assert all(each.figure is not None and each.figure >= 0 for each in found)
    if key == "online_follower":
        assert "3,000 of them" in found[0].measure
