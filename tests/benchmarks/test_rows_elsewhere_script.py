"""benchmarks/rows_elsewhere.py runs, and shows every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import Programs


@pytest.mark.slow
def test_a_quick_run_prints_every_way(project_root: Path, programs: Programs, tmp_path: Path) -> None:
    done = programs.run(project_root / "benchmarks" / "rows_elsewhere.py", "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    head, _, *rows = done.stdout.splitlines()
    assert [f"{way} ms" in head for way in ("one after the other", "postpush", "prefetch 1")] == [True] * 3
    assert [row.split("|")[1].strip() for row in rows] == ["2", "6", "20"]
