"""The checked-in stub of the extension is the one that the extension gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_stub_is_what_the_extension_gives(project_root: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(project_root / "scripts" / "update-stub"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_check_shows_the_difference_and_the_command(project_root: Path, tmp_path: Path) -> None:
    stale = tmp_path / "_core.pyi"
    stale.write_text("VERSION: int\n")
    result = subprocess.run(
        [sys.executable, str(project_root / "scripts" / "update-stub"), "--check", "--stub", str(stale)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert result.returncode == 1
    assert "-VERSION: int" in result.stdout
    assert "scripts/update-stub" in result.stdout
    assert stale.read_text() == "VERSION: int\n"
