"""Rows that are replaced every day leave nothing behind. ``scripts/expiry-soak`` does it with more of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_thirty_days_of_replaced_rows_leave_neither_tombstones_nor_memory_nor_larger_checkpoints(
    project_root: Path,
) -> None:
    command = [sys.executable, "scripts/expiry-soak", "--days", "30", "--rows", "10000", "--json"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert [day["rows"] for day in result["days"]] == [10000] * 30
