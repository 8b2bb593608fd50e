from __future__ import annotations

import os
from pathlib import Path

import pytest

from monolith.cli._bench import runner
from monolith.cli._bench.measurement import RowSkippedError
from monolith.cli._bench.setting import Setting

pytestmark = pytest.mark.usefixtures("forked_starts")
SETTING = Setting(threads=3, memory_rows=(5, 7))


@pytest.fixture(autouse=True)
def _children_find_their_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def test_a_call_runs_in_another_process_with_setting_and_arguments() -> None:
    answer = runner.call("child_functions:echo", SETTING, name="x", count=4)
    assert answer.pop("pid") != os.getpid()
    assert answer == {"threads": 3, "sizes": [5, 7], "name": "x", "count": 4}


def test_a_skip_travels_with_its_reason() -> None:
    with pytest.raises(RowSkippedError, match="the peer is missing; install it"):
        runner.call("child_functions:skip", SETTING)


def test_a_raising_function_is_a_failure_with_its_reason(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(runner.ChildFailedError, match=r"^ValueError: this row is broken$"):
        runner.call("child_functions:fail", SETTING)
    assert "Traceback" in capfd.readouterr().err, "the whole story is on standard error"


def test_a_killed_process_is_distinguished_from_a_raising_one() -> None:
    with pytest.raises(runner.ChildFailedError, match="killed by signal 9, probably out of memory"):
        runner.call("child_functions:die", SETTING)


def test_a_function_that_does_not_exist_is_a_failure_that_names_it() -> None:
    with pytest.raises(runner.ChildFailedError, match="no_such_function"):
        runner.call("child_functions:no_such_function", SETTING)


def test_an_interrupt_of_the_child_interrupts_the_caller() -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.call("child_functions:interrupt", SETTING)


def test_what_libraries_print_does_not_spoil_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.call("child_functions:print_noise", SETTING) == "answer"
    assert capfd.readouterr().out == "", "standard output belongs to the report"
