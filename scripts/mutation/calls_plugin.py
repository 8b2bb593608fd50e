"""A pytest plugin that records which functions of the project each test calls, or runs only listed tests.

The test processes of a working copy load it with ``-p mutation.calls_plugin``.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import CodeType, FrameType


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the three options of the plugin."""
    group = parser.getgroup("mutation")
    group.addoption("--calls-to", type=Path, help="file to which the calls of every test are written")
    group.addoption("--calls-below", type=Path, help="record only functions of files below this folder")
    group.addoption("--only-tests", type=Path, help="a JSON list of the ids of the tests to run")


def pytest_configure(config: pytest.Config) -> None:
    """Record calls if `--calls-to` is given."""
    if config.getoption("--calls-to"):
        config.pluginmanager.register(_Recorder(config.getoption("--calls-to"), config.getoption("--calls-below")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are not listed."""
    listed = config.getoption("--only-tests")
    if listed:
        selected = frozenset(json.loads(listed.read_text(encoding="utf-8")))
        items[:] = [item for item in items if item.nodeid in selected]


class _Recorder:
    def __init__(self, target: Path, folder: Path) -> None:
        self._target = target
        self._folder = str(folder.resolve()) + "/"
        self._called: dict[int, CodeType] = {}  # by id(), since code objects with equal content compare equal
        self._tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._traced(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._traced(item, "calls"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._traced(item, "calls"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, _new_record())
        test["seconds"] += report.duration
        test["passed"] |= report.when == "call" and report.passed
        test["failed"] |= report.failed

    def pytest_sessionfinish(self) -> None:
        self._target.write_text(json.dumps(self._tests), encoding="utf-8")

    def _traced(self, item: pytest.Item, part: str) -> Generator[None, object, object]:
        self._called.clear()
        threading.settrace(self._record_call)
        sys.settrace(self._record_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            test = self._tests.setdefault(item.nodeid, _new_record())
            codes = list(self._called.values())
            names = {f"{code.co_filename}::{code.co_qualname}" for code in codes}
            below = {name.removeprefix(self._folder) for name in names if name.startswith(self._folder)}
            test[part] = sorted({*test[part], *below})

    def _record_call(self, frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG002 - the tracer's signature
        code = frame.f_code
        self._called[id(code)] = code


def _new_record() -> dict[str, Any]:
    return {"seconds": 0.0, "passed": False, "failed": False, "setup": [], "calls": []}
