"""An error or an interrupt at every file operation of a save and of a restore costs no checkpoint that was there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from file_faults.operations import preload
from file_faults.users import USERS, prepare_all

pytestmark = pytest.mark.usefixtures("watched_starts")
PROCESS = Path(__file__).with_name("process.py")
USER_PROCESS = Path(__file__).with_name("user_process.py")


def run_process(library: Path, *arguments: str, process: Path = PROCESS) -> Any:
    done = subprocess.run(
        [sys.executable, str(process), str(library), *arguments],
        env=preload(library),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("scenario", "kind", "first", "stride"),
    [
        ("first", "EIO", 1, 2),
        pytest.param("first", "EIO", 2, 2, marks=pytest.mark.slow),
        pytest.param("only one kept", "EIO", 1, 2, marks=pytest.mark.slow),
        pytest.param("only one kept", "interrupt", 2, 2, marks=pytest.mark.slow),
        pytest.param("in the background", "interrupt", 1, 2, marks=pytest.mark.slow),
        pytest.param("same step", "EIO", 1, 3, marks=pytest.mark.slow),
        pytest.param("same step", "ENOSPC", 2, 3, marks=pytest.mark.slow),
        pytest.param("same step", "interrupt", 3, 3, marks=pytest.mark.slow),
    ],
)
def test_a_save_that_fails_anywhere_leaves_the_old_checkpoint_or_the_new_one(
    library: Path, quick_folder: Path, scenario: str, kind: str, first: int, stride: int
) -> None:
    """Every operation of every scenario fails, by one or the other of its kinds."""
    found = run_process(library, "save", scenario, str(quick_folder / "model"), kind, str(first), str(stride))
    assert found["problems"] == []
    assert found["operations"] > 100, "the last one was tried, and there are many"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EIO", "interrupt"])
def test_a_restore_that_fails_anywhere_takes_the_one_before_or_leaves_the_run_as_it_was(
    library: Path, quick_folder: Path, kind: str
) -> None:
    found = run_process(library, "restore", str(quick_folder / "model"), kind)
    assert found["problems"] == []
    assert found["operations"] > 25


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "interrupt"])
def test_a_write_that_fails_anywhere_leaves_the_old_files_or_the_new_ones(
    library: Path, quick_folder: Path, kind: str
) -> None:
    prepare_all(quick_folder)
    found = run_process(library, "fail", str(quick_folder), kind, process=USER_PROCESS)
    assert {name: result["problems"] for name, result in found.items() if result["problems"]} == {}
    assert {name for name, result in found.items() if result["operations"] < 4} == set()
    assert found.keys() == USERS.keys()
