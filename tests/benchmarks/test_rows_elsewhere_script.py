"""benchmarks/rows_elsewhere.py runs, and shows every way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_quick_run_prints_every_way(project_root: Path) -> None:
    script = project_root / "benchmarks" / "rows_elsewhere.py"
    done = subprocess.run([sys.executable, script, "--quick"], capture_output=True, text=True, check=True)
    head, _, *rows = done.stdout.splitlines()
    assert [f"{way} ms" in head for way in ("one after the other", "postpush", "prefetch 1")] == [True] * 3
    assert [row.split("|")[1].strip() for row in rows] == ["2", "6", "20"]
