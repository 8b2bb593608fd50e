"""Every row of benchmarks/serving.py runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.setting import Setting

TINY = Setting(large_rows=5200, small_rows=5200, rounds=1, seconds=0.02)

_MEASURE = """
import json, sys
from monolith.cli._bench import catalog
from monolith.cli._bench.setting import Setting

setting = Setting.from_json(json.loads(sys.argv[1]))
rows = ("serving_load", "serving_graph", "serving_layout", "serving_start")  # the first one forks
print(json.dumps([found for row in rows for found in catalog.measure_row(setting, row)]))
"""


def test_the_rows_measure_what_must_be_reached(tmp_path: Path) -> None:
    """In a process of their own, as the script has it; `serving_load` measures what `serving_server` does, too."""
    setting = {**TINY.to_json(), "directory": str(tmp_path)}
    command = [sys.executable, "-c", _MEASURE, json.dumps(setting)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [Measurement.from_json(fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    assert [(each.row, each.limit) for each in found] == [
        ("serving_load", 0.85),
        ("serving_load", 4.0),
        ("serving_load", 1.5),
        ("serving_load", 0.9),
        ("serving_load", 2.0),
        ("serving_load", 20.0),
        ("serving_graph", 1.15),
        ("serving_layout", 0.4),
        ("serving_layout", 0.4),
        ("serving_layout", 0.5),
        ("serving_start", 1.3),
        ("serving_start", 0.4),
    ]
    assert all(each.figure is not None and each.figure >= 0 for each in found)
    assert list(tmp_path.iterdir()) == []


def test_the_script_knows_its_rows(project_root: Path) -> None:
    command = [sys.executable, "benchmarks/serving.py", "--help"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "serving_graph, serving_layout, serving_server, serving_load" in " ".join(done.stdout.split())
