"""benchmarks/kafka.py: every row is measured, and everything that was written is read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def test_a_quick_run_prints_every_row(project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project_root / "benchmarks" / "kafka.py"
    spec = importlib.util.spec_from_file_location("benchmarks_kafka", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert [workload.name for workload in module.workloads() if f"| {workload.name} |" not in printed] == []
