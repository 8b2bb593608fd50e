"""What an attack is: attempts, one after another, each with what became of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from monolith.testing.crash.child import Child

__all__ = ["Attack", "Attempt", "Attempts", "Report", "run_attack"]

_MOST_PROBLEMS_SHOWN = 20
_LONGEST_PROBLEM = 800


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing that was tried."""

    what: str
    outcome: str
    """What became of it, in words to count by."""
    problem: str | None = None
    """What must not be; None: it held."""


Attempts: TypeAlias = Callable[[int, Path], Iterator[Attempt]]
"""Seed and an empty folder -> attempts; the same ones for the same seed, as far as moments can be the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A way to do harm, and what must hold all the same."""

    name: str
    does: str
    must: str
    attempts: Attempts
    count: int
    """Attempts that take some seconds: what the tests do."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What an attack came to."""

    attack: str
    must: str
    attempts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, attempt: Attempt) -> None:
        """Counts one."""
        self.attempts += 1
        self.outcomes[attempt.outcome] += 1
        if attempt.problem is not None and len(self.problems) < _MOST_PROBLEMS_SHOWN:
            problem = attempt.problem
            if len(problem) > _LONGEST_PROBLEM:  # the end of a traceback says most
                problem = f"{problem[: _LONGEST_PROBLEM // 4]} ... {problem[-_LONGEST_PROBLEM:]}"
            self.problems.append(f"{attempt.what}: {problem}")

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in ("attack", "must", "attempts", "problems")} | {
            "outcomes": dict(self.outcomes.most_common()),
            "seconds": round(self.seconds, 1),
        }


def run_attack(attack: Attack, *, seed: int, folder: Path, count: int | None, seconds: float | None = None) -> Report:
    """Attempts in a process of their own, so that a crash is a finding and not the end.

    Args:
        attack: Which.
        seed: Of everything that is drawn.
        folder: Empty, for its files.
        count: How many; None: until there are no more, or the time is up.
        seconds: When to begin no further one; None: no limit.
    """
    report = Report(attack=attack.name, must=attack.must)
    begun = time.monotonic()
    files, last = folder / "files", folder / "last"
    files.mkdir()

    def work(_: object) -> dict[str, Any]:
        logging.disable()  # what is logged of hundreds of failures hides the report
        for number, attempt in enumerate(attack.attempts(seed, files), start=1):
            report.add(attempt)
            last.write_text(attempt.what, "utf-8", "backslashreplace")  # for whoever asks after a crash
            if number == count or (seconds is not None and time.monotonic() - begun > seconds):
                break
        return report.as_json()

    child = Child(work)
    try:
        child.wait()
        found = child.told().get("result")
    except RuntimeError as error:  # the attack itself failed, which is a finding, too
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
