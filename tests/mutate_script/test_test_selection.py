"""Which tests run on a mutant, and in which order: within the budget, those that call the mutated function first."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutation.areas import Area
from mutation.calls import Calls, RecordedTest
from mutation.mutant import mutants_of
from mutation.python_rules import python_edits

CALL = "src/toy/store.py::write"
AREA = Area("toy", ("src/**/*.py",), ("tests",))


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    tests = {
        "tests/test_store.py": [
            RecordedTest("store::long", 9.0, frozenset({"src/toy/store.py::read"})),
            RecordedTest("store::writes", 2.0, frozenset({CALL})),
        ],
        "tests/test_users.py": [
            RecordedTest("users::writes", 3.0, frozenset({CALL})),
            RecordedTest("users::other", 1.0, frozenset()),
        ],
        "tests/test_zero.py": [RecordedTest("zero::writes", 1.0, frozenset({CALL}))],
    }
    for file in tests:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return Calls(tmp_path / "calls", tmp_path, tests)


def selected(calls: Calls, budget: float) -> tuple[list[str], list[str]]:
    text = "def write() -> int:\n    return 1\n"
    mutant = mutants_of("toy", "src/toy/store.py", text, python_edits(text))[0]
    selection = calls.select(mutant, AREA, budget=budget, thorough=False)
    return selection.tests, selection.files


def test_the_tests_that_call_the_function_come_before_other_tests_of_its_file(calls: Calls) -> None:
    tests, files = selected(calls, 60.0)
    assert tests == ["store::writes", "zero::writes", "users::writes", "store::long"]
    assert files == ["tests/test_store.py", "tests/test_zero.py", "tests/test_users.py"]


def test_the_budget_ends_the_selection(calls: Calls) -> None:
    assert selected(calls, 2.5)[0] == ["store::writes", "zero::writes"]
