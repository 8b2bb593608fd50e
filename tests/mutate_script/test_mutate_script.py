"""The script on a toy project: it finds killed and surviving mutants, resumes a stopped run, and changes no file."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mutate_script.toy import LIMIT, TESTS, make_project

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mutate"


def command(folder: Path, *arguments: str) -> list[str]:
    config = folder / "areas.toml"
    return [sys.executable, str(SCRIPT), "--root", str(folder), "--config", str(config), "--may-live", "0", *arguments]


def mutate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *arguments), capture_output=True, text=True, check=False, timeout=55)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    make_project(folder)
    return folder


@pytest.fixture(scope="module")
def first_run(project: Path) -> subprocess.CompletedProcess[str]:
    return mutate(project, "--jobs", "2")


@pytest.fixture
def judged(project: Path, first_run: subprocess.CompletedProcess[str], tmp_path: Path) -> Path:
    """A copy of the project after its first run, which a test may change."""
    return shutil.copytree(project, tmp_path / "judged", ignore=shutil.ignore_patterns("python-*"))


def verdicts(folder: Path) -> dict[str, str]:
    lines = (folder / "build/mutate/results.jsonl").read_text().splitlines()
    return {record["mutant"]: record["verdict"]["outcome"] for record in map(json.loads, lines)}


@pytest.mark.slow
def test_a_mutant_that_a_test_detects_is_killed_and_any_other_survives(
    project: Path, first_run: subprocess.CompletedProcess[str]
) -> None:
    assert first_run.returncode == 1, first_run.stderr
    assert verdicts(project) == {
        "src/toy/limit.py:3: 3 -> 4": "killed",
        "src/toy/limit.py:8: > -> >=": "killed",
        "src/toy/limit.py:8: > -> <=": "killed",
        "src/toy/limit.py:8: return number > SMALL -> return None": "killed",
        "src/toy/limit.py:13: 1 -> 2": "alive",
        "src/toy/limit.py:13: return 1 -> return None": "alive",
    }
    assert "| limits | 6 | 4 | 2 |" in first_run.stdout
    assert "src/toy/limit.py:13: 1 -> 2" in (project / "build/mutate/survivors.md").read_text()


@pytest.mark.slow
def test_a_test_that_fails_without_a_mutant_is_reported(
    first_run: subprocess.CompletedProcess[str],
) -> None:
    assert "fail without a mutant and are ignored: tests/test_limit.py::test_is_broken" in first_run.stderr


@pytest.mark.slow
def test_the_project_itself_is_never_changed(project: Path, first_run: subprocess.CompletedProcess[str]) -> None:
    assert (project / "src/toy/limit.py").read_text() == LIMIT
    assert sorted(path.name for path in (project / "src/toy").iterdir()) == ["__init__.py", "limit.py"]


@pytest.mark.slow
def test_a_second_run_repeats_no_mutant_until_a_test_changes(
    judged: Path, first_run: subprocess.CompletedProcess[str]
) -> None:
    again = mutate(judged)
    assert again.stdout == first_run.stdout
    assert "[" not in again.stderr
    tests = judged / "tests/test_limit.py"
    tests.write_text(TESTS.replace("    limit.one()", "    assert limit.one() == 1"))
    mended = mutate(judged)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "| limits | 6 | 6 | 0 |" in mended.stdout
    assert mended.stderr.count("killed") == 2


@pytest.mark.slow
def test_an_equivalent_mutant_is_listed_with_its_reason_and_a_stale_reason_is_reported(judged: Path) -> None:
    entry = '[[mutant]]\npath = "src/toy/limit.py"\nsource_line = "return 1"\nreason = "toy"\nchange = "{}"\n'
    (judged / "equivalent.toml").write_text(entry.format("1 -> 2") + entry.format("1 -> 3"))
    result = mutate(judged)
    assert "- src/toy/limit.py:13: 1 -> 2: toy" in result.stdout
    assert "Alive: 1" in result.stdout
    assert "matches no mutant any more: src/toy/limit.py: 1 -> 3" in result.stderr


def test_the_sample_is_drawn_by_the_seed_and_can_be_listed_without_a_run(tmp_path: Path) -> None:
    make_project(tmp_path)
    lists = [mutate(tmp_path, "--list", "--count", "3", "--seed", seed).stdout for seed in ("0", "0", "1")]
    assert lists[0] == lists[1] != lists[2]
    assert lists[0].count("limit.py:") == 3
    assert not (tmp_path / "build").exists()


@pytest.mark.slow
def test_ctrl_c_ends_a_hanging_test_and_keeps_the_verdicts(tmp_path: Path) -> None:
    make_project(tmp_path)
    started = tmp_path / "started"
    hang = f"def test_hangs():\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(300)\n"
    (tmp_path / "tests/test_a_hang.py").write_text("import pathlib, time\n\n\n" + hang)
    with subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not started.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=240)
    assert "stopped; the same command resumes the run" in errors
    assert "| all | 0 | 0 | 0 |" in output
