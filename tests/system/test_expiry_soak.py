"""Rows that are replaced every day leave nothing behind. ``scripts/expiry-soak`` does it with more of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from programs import Programs


@pytest.mark.slow
def test_thirty_days_of_replaced_rows_leave_neither_tombstones_nor_memory_nor_larger_checkpoints(
    project_root: Path, programs: Programs
) -> None:
    arguments = ("--days", "30", "--rows", "10000", "--json")
    done = programs.run(Path("scripts/expiry-soak"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert [day["rows"] for day in result["days"]] == [10000] * 30
