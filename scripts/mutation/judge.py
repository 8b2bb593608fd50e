"""One mutant before its tests: put in place, run, taken back, with what became of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mutation.core_place import CorePlace

if TYPE_CHECKING:
    from mutation.calls import Choice
    from mutation.mutant import Mutant
    from mutation.process import Ended
    from mutation.workplace import Workplace

KILLED, ALIVE, INVALID = "killed", "alive", "invalid"

_START_SECONDS = 60.0
"""What a test process may take to begin, on a busy machine."""
_SLOWER = 10.0
"""How much longer than before a test may take, on a busy machine, until it counts as hanging."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    outcome: str
    """`KILLED`, `ALIVE`, or `INVALID`: not a program, and no mutant."""
    reason: str
    """The test that noticed it, or how much was tried."""
    seconds: float


def judge(mutant: Mutant, choice: Choice, place: Workplace) -> Verdict:
    """Try one mutant in a copy, which is as before when this returns or raises."""
    begun = time.monotonic()
    place.put(mutant)
    try:
        outcome, reason = _judge_core(choice, place) if isinstance(place, CorePlace) else _judge_python(choice, place)
    finally:
        place.take_back(mutant)
    return Verdict(outcome, reason, round(time.monotonic() - begun, 1))


def _judge_core(choice: Choice, place: CorePlace) -> tuple[str, str]:
    is_built, words = place.build_tests()
    if not is_built:
        error = re.search(r"error: (.*)", words)
        return INVALID, error[1] if error else "does not build"
    if reason := place.failing_cpp_test():
        return KILLED, reason
    is_built, words = place.build("_core")
    return _judge_python(choice, place) if is_built else (INVALID, words[-200:])


def _judge_python(choice: Choice, place: Workplace) -> tuple[str, str]:
    if not choice.tests:
        return ALIVE, "no test to try"
    ended = place.run_tests(choice.files, choice.tests, seconds=_START_SECONDS + _SLOWER * choice.seconds)
    if ended.code == 0:
        return ALIVE, f"{len(choice.tests)} tests in {len(choice.files)} files"
    return KILLED, _killer(ended)


def _killer(ended: Ended) -> str:
    if ended.limit:
        return f"over the limit of {ended.limit}"
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.output, re.MULTILINE)
    return named[1] if named else f"pytest ended with {ended.code}"
