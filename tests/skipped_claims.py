"""A claim whose test is skipped is not shown: in CI such a run fails, unless docs/parity.md says why.

A test counts as run when one of its cases ran: one that needs a GPU does not hide those that do not.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest


class SkippedClaims:
    """A pytest plugin; with several workers it works in the process that hears of all of them.

    Args:
        claims: The tests that count, and why each may be skipped; empty if it may not.
        is_error: Whether a skipped one fails the run, or is only told.
    """

    def __init__(self, claims: Mapping[str, str], *, is_error: bool) -> None:
        self._claims = claims
        self._is_error = is_error
        self._ran: set[str] = set()
        self._skipped: set[str] = set()

    @property
    def unshown(self) -> list[str]:
        """Those of which every case was skipped, and nobody said that it may be."""
        return sorted(name for name in self._skipped - self._ran if not self._claims[name])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that skips itself."""
        if report.skipped:
            self._skipped |= {name for name in self._claims if name.startswith(f"{report.nodeid}::")}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A case that was skipped, or ran."""
        name = report.nodeid.partition("[")[0]
        if name in self._claims and (report.skipped or report.when == "call"):
            (self._skipped if report.skipped else self._ran).add(name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run that would pass otherwise."""
        if self._is_error and self.unshown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Names them."""
        if self.unshown:
            terminalreporter.section("claims of docs/parity.md whose tests were skipped", red=self._is_error)
            for name in self.unshown:
                terminalreporter.line(f"{name}: let it run, or write `(skipped in CI: reason)` behind it in its row")
