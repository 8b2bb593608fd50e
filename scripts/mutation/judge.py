"""Runs the tests on one mutant: applies it to a working copy, runs the selected tests, and restores the file."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mutation.core_copy import CoreCopy

if TYPE_CHECKING:
    from mutation.calls import Selection
    from mutation.mutant import Mutant
    from mutation.process import Ended
    from mutation.working_copy import WorkingCopy

KILLED, ALIVE, INVALID = "killed", "alive", "invalid"

_START_SECONDS = 60.0
"""Time limit for the start of a test process, on a busy machine."""
_SLOWDOWN = 10.0
"""Factor on the recorded duration of a test, after which it counts as hanging, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one mutant."""

    outcome: str
    """`KILLED`, `ALIVE`, or `INVALID`: the mutant does not compile and is not counted."""
    reason: str
    """The test that failed, or the number of tests that passed."""
    seconds: float


def judge(mutant: Mutant, selection: Selection, copy: WorkingCopy) -> Verdict:
    """Run the selected tests on one mutant; the copy is restored when this returns or raises."""
    begun = time.monotonic()
    copy.apply(mutant)
    try:
        outcome, reason = _judge_core(selection, copy) if isinstance(copy, CoreCopy) else _judge_python(selection, copy)
    finally:
        copy.restore(mutant)
    return Verdict(outcome, reason, round(time.monotonic() - begun, 1))


def _judge_core(selection: Selection, copy: CoreCopy) -> tuple[str, str]:
    is_built, output = copy.build_tests()
    if not is_built:
        error = re.search(r"error: (.*)", output)
        return INVALID, error[1] if error else "does not build"
    if reason := copy.failing_cpp_test():
        return KILLED, reason
    is_built, output = copy.build("_core")
    return _judge_python(selection, copy) if is_built else (INVALID, output[-200:])


def _judge_python(selection: Selection, copy: WorkingCopy) -> tuple[str, str]:
    if not selection.tests:
        return ALIVE, "no test to try"
    ended = copy.run_tests(selection.files, selection.tests, seconds=_START_SECONDS + _SLOWDOWN * selection.seconds)
    if ended.code == 0:
        return ALIVE, f"{len(selection.tests)} tests in {len(selection.files)} files"
    return KILLED, _first_failure(ended)


def _first_failure(ended: Ended) -> str:
    if ended.limit:
        return f"over the limit of {ended.limit}"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.output, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {ended.code}"
