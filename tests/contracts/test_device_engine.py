"""The engine whose rows are on a device runs what every engine runs, in processes of its own (`device_store`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITES = {
    "contracts": ["-m", "not slow", "tests/contracts", "tests/serving/layout"],
    "models": ["tests/nn"],
    "checkpoints": ["tests/checkpoint"],
}
QUICK = "contracts"


@pytest.mark.parametrize(
    "suite", [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.slow]) for name in SUITES]
)
def test_the_suites_hold_with_rows_on_a_device(
    suite: str, project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLITH_TEST_DEVICE", "1")
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", "device and not test_device_engine", *SUITES[suite]],
        cwd=project_root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr
    assert " passed" in result.stdout.splitlines()[-1], result.stdout
