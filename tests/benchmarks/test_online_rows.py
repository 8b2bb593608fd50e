"""Every row of benchmarks/online.py runs, at sizes at which its figures mean nothing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from monolith.cli._bench.measurement import Measurement
from monolith.cli._bench.setting import Setting

TINY = Setting(large_rows=3000, small_rows=3000, rounds=2, seconds=0.1)

_MEASURE = """
import json, sys
from monolith.cli._bench import catalog
from monolith.cli._bench.setting import Setting

setting = Setting.from_json(json.loads(sys.argv[1]))
print(json.dumps([found for row in catalog.ONLINE_ROWS for found in catalog.measure_row(setting, row.key)]))
"""


def test_the_rows_measure_what_must_be_reached() -> None:
    """In a process of their own, as the script has it: a row sets the threads of its process."""
    command = [sys.executable, "-c", _MEASURE, json.dumps(TINY.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [Measurement.from_json(fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    assert [(each.row, each.limit) for each in found] == [
        ("online_changes", 20.0),
        ("online_changes", 1.5),
        ("online_changes", 0.25),
        ("online_follower", 20.0),
        ("online_follower", 1.0),
        ("online_path", 200.0),
        ("online_path", 6.0),
        ("online_path", 0.95),
        ("online_path", 20.0),
        ("online_joiner", 2.0 if importlib.util.find_spec("bytewax") else None),
        ("online_joiner", 10_000.0),
    ]
    assert all(each.figure is not None and each.figure >= 0 for each in found)
    assert "3,000 of them" in found[3].measure


def test_the_script_knows_its_rows(project_root: Path) -> None:
    command = [sys.executable, "benchmarks/online.py", "--help"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "online_changes, online_follower, online_path" in " ".join(done.stdout.split())
