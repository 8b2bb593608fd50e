"""The attacks of `system.attack`, each for some seconds; ``scripts/attack --minutes 10`` makes more."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from programs import Programs
from system.attack import ATTACKS, Attack, Attempt, run_attack

ATTACK = Path("scripts/attack")
QUICK = "requests"
"""The attack of the quick tier."""


@pytest.mark.timeout(300)  # seconds on a free machine; this ends a hang, however busy the machine is
@pytest.mark.parametrize(
    "name", [pytest.param(each.name, marks=[] if each.name == QUICK else pytest.mark.slow) for each in ATTACKS]
)
def test_everything_holds_that_must(name: str, project_root: Path, quick_folder: Path, programs: Programs) -> None:
    arguments = [name, "--count", "0", "--seed", "7", "--json", "--directory", str(quick_folder)]
    done = programs.run(ATTACK, *arguments, folder=project_root)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)["attacks"]
    assert report["problems"] == []
    assert report["attempts"] == {each.name: each.count for each in ATTACKS}[name]
    assert list(quick_folder.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no attack has the name 'nothing'; the attacks are signals, "),
        (["--count", "-1"], "--count must be at least 0"),
        (["--minutes", "0"], "--minutes more than 0"),
    ],
)
def test_an_unknown_attack_is_rejected(arguments: list[str], said: str, project_root: Path, programs: Programs) -> None:
    done = programs.run(ATTACK, *arguments, folder=project_root)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def made_up(attempts: Any) -> Attack:
    return Attack(name="made up", does="", must="", attempts=attempts, count=1)


def some(seed: int, folder: Path) -> Iterator[Attempt]:
    for number in range(100):
        yield Attempt(f"attempt {number} of {seed}", "good", "it broke" if number == 3 else None)


def test_a_problem_is_reported_with_what_was_tried(tmp_path: Path) -> None:
    report = run_attack(made_up(some), seed=5, folder=tmp_path, count=10)
    assert (report.attempts, report.outcomes, report.problems) == (10, {"good": 10}, ["attempt 3 of 5: it broke"])


def test_an_attack_ends_when_it_has_no_more_attempts(tmp_path: Path) -> None:
    assert run_attack(made_up(some), seed=5, folder=tmp_path, count=None).attempts == 100


def test_an_attack_ends_when_its_time_is_up(tmp_path: Path) -> None:
    assert run_attack(made_up(some), seed=5, folder=tmp_path, count=None, seconds=0.0).attempts == 1


def test_a_crash_is_a_problem_that_names_the_last_attempt(tmp_path: Path) -> None:
    def crashes(seed: int, folder: Path) -> Iterator[Attempt]:
        yield Attempt("the last one", "good")
        os.kill(os.getpid(), signal.SIGKILL)

    report = run_attack(made_up(crashes), seed=5, folder=tmp_path, count=10)
    assert report.problems == ["the process died after 'the last one'"]


def test_an_attack_that_fails_is_a_problem(tmp_path: Path) -> None:
    def fails(seed: int, folder: Path) -> Iterator[Attempt]:
        yield Attempt("first", "good")
        raise RuntimeError("no way")

    report = run_attack(made_up(fails), seed=5, folder=tmp_path, count=10)
    assert len(report.problems) == 1
    assert "RuntimeError: no way" in report.problems[0]
