"""The interface of an attack: attempts, one after another, each with its outcome."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from system.crash.processes import Child

_MOST_PROBLEMS_SHOWN = 20
_LONGEST_PROBLEM = 800


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of an attack."""

    what: str
    outcome: str
    """Short description of the outcome, used for counting."""
    problem: str | None = None
    """Violated invariant; None: no problem."""


Attempts: TypeAlias = Callable[[int, Path], Iterator[Attempt]]
"""Seed and an empty folder -> attempts; the same ones for the same seed, as far as timing allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A way to do harm, and the invariant that must hold."""

    name: str
    does: str
    must: str
    attempts: Attempts
    count: int
    """Number of attempts that take some seconds, for the tests."""


@dataclass(slots=True, kw_only=True)
class Report:
    """Results of an attack."""

    attack: str
    must: str
    attempts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, attempt: Attempt) -> None:
        """Counts an attempt."""
        self.attempts += 1
        self.outcomes[attempt.outcome] += 1
        if attempt.problem is not None and len(self.problems) < _MOST_PROBLEMS_SHOWN:
            problem = attempt.problem
            if len(problem) > _LONGEST_PROBLEM:  # the end of a traceback is the most useful part
                problem = f"{problem[: _LONGEST_PROBLEM // 4]} ... {problem[-_LONGEST_PROBLEM:]}"
            self.problems.append(f"{attempt.what}: {problem}")

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {name: getattr(self, name) for name in ("attack", "must", "attempts", "problems")} | {
            "outcomes": dict(self.outcomes.most_common()),
            "seconds": round(self.seconds, 1),
        }


def run_attack(attack: Attack, *, seed: int, folder: Path, count: int | None, seconds: float | None = None) -> Report:
    """Runs attempts in a process of their own, so that a crash is a finding and does not end the program.

    Args:
        attack: The attack.
        seed: Seed of all random choices.
        folder: Empty folder for its files.
        count: Number of attempts; None: until there are no more, or the time is up.
        seconds: Time after which no further attempt begins; None: no limit.
    """
    report = Report(attack=attack.name, must=attack.must)
    begun = time.monotonic()
    files, last = folder / "files", folder / "last"
    files.mkdir()

    def work(_: object) -> dict[str, Any]:
        logging.disable()  # logs of hundreds of failures would hide the report
        for number, attempt in enumerate(attack.attempts(seed, files), start=1):
            report.add(attempt)
            last.write_text(attempt.what, "utf-8", "backslashreplace")  # for the analysis of a crash
            if number == count or (seconds is not None and time.monotonic() - begun > seconds):
                break
        return report.as_json()

    child = Child(work)
    try:
        child.wait()
        found = child.told().get("result")
    except RuntimeError as error:  # a failure of the attack itself is a finding, too
        found = {"problems": [str(error)]}
    finally:
        child.close()
    if found is None:
        after = repr(last.read_text("utf-8")) if last.exists() else "its start"
        found = {"problems": [f"the process died after {after}"]}
    report.attempts, report.problems = found.get("attempts", 0), found["problems"]
    report.outcomes = Counter(found.get("outcomes", {}))
    report.seconds = time.monotonic() - begun
    return report
