"""Records once which functions each test calls, and selects the tests to run for a mutant."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mutation.areas import Area
    from mutation.mutant import Mutant
    from mutation.working_copy import WorkingCopy

_FILE_SECONDS = 1200.0
"""Time limit for the tests of one file while their calls are recorded, on a busy machine."""


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """A test that passes without a mutant."""

    id: str
    seconds: float
    calls: frozenset[str]
    """``path::qualified name`` of every function it called; calls of shared fixtures count for every test of a file."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The tests to run for one mutant, with their files in the order in which they run."""

    files: list[str]
    tests: list[str]
    seconds: float


@dataclass(slots=True)
class Calls:
    """The recorded calls of all test files. Any thread may read them; only `load` and `record` change them."""

    folder: Path
    root: Path
    by_file: dict[str, list[RecordedTest]] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    """Tests that fail without a mutant; they are never selected."""

    def load(self, file: str) -> bool:
        """Load what an earlier run recorded for this version of a test file; False if there is no such record."""
        path = self._path(file)
        if path.exists():
            self._add(file, json.loads(path.read_text(encoding="utf-8")))
        return path.exists()

    def record(self, file: str, copy: WorkingCopy) -> str:
        """Run a test file and record its calls; returns one line for the log."""
        ended, target = copy.record_calls(file, seconds=_FILE_SECONDS)
        if not target.exists():
            self.by_file[file] = []
            self.failing.append(file)
            return f"{file} is ignored: {ended.limit or ended.output[-500:]}"
        content = target.read_text(encoding="utf-8")
        self._add(file, json.loads(content))
        if not any(test["failed"] for test in json.loads(content).values()):  # a failing test may pass in the next run
            self._path(file).parent.mkdir(parents=True, exist_ok=True)
            self._path(file).write_text(content, encoding="utf-8")
        return f"{file}: {len(self.by_file[file])} tests"

    def _path(self, file: str) -> Path:
        digest = hashlib.sha256(file.encode() + b"\0" + (self.root / file).read_bytes()).hexdigest()[:16]
        return self.folder / f"{Path(file).stem}-{digest}.json"

    def _add(self, file: str, content: dict[str, dict[str, Any]]) -> None:
        shared = {call for test in content.values() for call in test["setup"]}
        self.by_file[file] = [
            RecordedTest(name, float(test["seconds"]), frozenset(shared | set(test["calls"])))
            for name, test in content.items()
            if test["passed"] and not test["failed"]
        ]
        self.failing += [name for name, test in content.items() if test["failed"]]

    def select(self, mutant: Mutant, area: Area, *, budget: float, thorough: bool) -> Selection:
        """Select the tests that call the mutated function, then the other tests of files named after its module.

        Args:
            mutant: The mutant to test.
            area: The area of the mutant; its tests are the candidates.
            budget: Seconds of tests after which no other test is added.
            thorough: Select all tests of the area, without a limit.
        """
        files = {file: self.by_file.get(file, []) for file in area.test_files(self.root)}
        if thorough or area.is_cpp:
            return _select(list(files.items()), float("inf") if thorough else budget)
        named = [file for file in files if _is_named_after(file, mutant.path)]
        for matches in self._filters(mutant):
            matching = {file: [test for test in tests if matches(file, test)] for file, tests in files.items()}
            if any(matching.values()):
                ordered = sorted(matching.items(), key=lambda item: (item[0] not in named, _seconds(item[1])))
                ordered += [(file, [test for test in files[file] if test not in matching[file]]) for file in named]
                return _select([(file, tests) for file, tests in ordered if tests], budget)
        return _select(list(files.items()), budget)

    def _filters(self, mutant: Mutant) -> Iterator[Callable[[str, RecordedTest], bool]]:
        """Filters of tests, the most precise one first; the first filter that matches any test is used."""
        function = f"{mutant.path}::{mutant.edit.scope}"
        name = mutant.edit.scope.rpartition(".")[2] or re.split(r"\W", mutant.source_line, maxsplit=1)[0]
        texts = {file: (self.root / file).read_text(encoding="utf-8") for file in self.by_file}
        yield lambda _, test: function in test.calls
        yield (
            lambda file, test: (
                any(call.startswith(f"{function}." if mutant.edit.scope else function) for call in test.calls)
                or bool(name and re.search(rf"\b{re.escape(name)}\b", texts[file]))
            )
        )
        yield lambda _, test: any(call.startswith(f"{mutant.path}::") for call in test.calls)


def _is_named_after(file: str, module: str) -> bool:
    return Path(module).stem.strip("_") in Path(file).stem


def _seconds(tests: list[RecordedTest]) -> float:
    return sum(test.seconds for test in tests)


def _select(files: list[tuple[str, list[RecordedTest]]], budget: float) -> Selection:
    names: list[str] = []
    tests: list[str] = []
    seconds = 0.0
    for file, recorded in files:
        if seconds > budget:
            break
        for test in recorded:
            if seconds <= budget:
                tests.append(test.id)
                seconds += test.seconds
        names.append(file)
    return Selection(list(dict.fromkeys(names)), tests, seconds)
