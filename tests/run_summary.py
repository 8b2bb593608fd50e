"""Ends a run with one line for each program that skipped tests need, and one that names slow tests without the mark."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

QUICK_SECONDS = 10.0
"""A test that takes longer belongs to the full tier."""

_MISSING = re.compile(r"(?:Skipped: )?(?P<what>.+) is not installed(?:; on Debian)?: (?P<command>.+)", re.DOTALL)
"""The reason of a skip that a package of the system would prevent."""


class RunSummary:
    """A pytest plugin; with several workers it works in the process that receives the reports of all of them."""

    def __init__(self) -> None:
        self._missing: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts skips by what is missing, and the time of unmarked tests with their setup and teardown."""
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        if missing := _MISSING.fullmatch(reason):
            self._missing[missing["what"], missing["command"]] += 1
        if "slow" not in report.keywords:
            self._seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the lines, if there are any."""
        for (what, command), count in sorted(self._missing.items()):
            terminalreporter.line(f"{count} {'test needs' if count == 1 else 'tests need'} {what}: {command}")
        slow = {name: seconds for name, seconds in self._seconds.items() if seconds > QUICK_SECONDS}
        if slow:
            names = ", ".join(f"{name} ({seconds:.0f} s)" for name, seconds in slow.items())
            terminalreporter.line(
                f"{len(slow)} without the mark `slow` took longer than {QUICK_SECONDS:.0f} s; "
                f"mark them slow or make them cheaper: {names}"
            )
