"""benchmarks/checkpoints.py measures what it says, on a few rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(project_root: Path) -> ModuleType:
    path = project_root / "benchmarks" / "checkpoints.py"
    spec = importlib.util.spec_from_file_location("benchmarks_checkpoints", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_requirement_is_measured_and_judged(script: ModuleType, tmp_path: Path) -> None:
    size = script.Size(rows=500, dense_bytes=32_000, rounds=1, step_seconds=0.05)
    measures = (script.measure_cuts, script.measure_slowdown, script.measure_restore)
    lines = [line for measure in measures for line in measure(tmp_path, size)]
    assert [line.needed for line in lines] == [
        "<= 10 ms",
        "<= 0.0032 ms",
        "<= 10 % at >= 100 MB/s",
        ">= 0.7 x",
    ]
    assert not lines[1].ok  # nothing is that quick
    assert all(isinstance(line.ok, bool) for line in lines)
