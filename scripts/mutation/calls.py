"""Which tests call which functions, learnt once from a run of every test file, and so which tests a mutant is given."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mutation.mutant import Mutant
    from mutation.rooms import Room
    from mutation.workplace import Workplace

_FILE_SECONDS = 1200.0
"""How long the tests of one file may take with their calls noted, on a busy machine."""


@dataclass(frozen=True, slots=True)
class KnownTest:
    """What a test did when nothing was wrong."""

    id: str
    seconds: float
    calls: frozenset[str]
    """``path::qualified name`` of every function it called; those of shared fixtures count for every test of a file."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests that judge one mutant, by files in the order in which they run."""

    files: list[str]
    tests: list[str]
    seconds: float


@dataclass(slots=True)
class Calls:
    """What is known of all test files; read by many threads, changed by `learn` only."""

    folder: Path
    root: Path
    by_file: dict[str, list[KnownTest]] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    """Tests that do not pass without any mutant: they judge nothing."""

    def is_known(self, file: str) -> bool:
        """Read what an earlier run has learnt of a test file; False when there is none for its present text."""
        path = self._path(file)
        if path.exists():
            self._take(file, json.loads(path.read_text(encoding="utf-8")))
        return path.exists()

    def learn(self, file: str, place: Workplace) -> str:
        """Run a test file; what it told of itself, or why it did not come to that."""
        ended, target = place.note_calls(file, seconds=_FILE_SECONDS)
        if not target.exists():
            self.by_file[file] = []
            self.failing.append(file)
            return f"{file} judges nothing: {ended.limit or ended.output[-500:]}"
        content = target.read_text(encoding="utf-8")
        self._take(file, json.loads(content))
        if not any(test["failed"] for test in json.loads(content).values()):  # what fails may pass the next time
            self._path(file).parent.mkdir(parents=True, exist_ok=True)
            self._path(file).write_text(content, encoding="utf-8")
        return f"{file}: {len(self.by_file[file])} tests"

    def _path(self, file: str) -> Path:
        digest = hashlib.sha256(file.encode() + b"\0" + (self.root / file).read_bytes()).hexdigest()[:16]
        return self.folder / f"{Path(file).stem}-{digest}.json"

    def _take(self, file: str, content: dict[str, dict[str, Any]]) -> None:
        shared = {call for test in content.values() for call in test["setup"]}
        self.by_file[file] = [
            KnownTest(name, float(test["seconds"]), frozenset(shared | set(test["calls"])))
            for name, test in content.items()
            if test["passed"] and not test["failed"]
        ]
        self.failing += [name for name, test in content.items() if test["failed"]]

    def choose(self, mutant: Mutant, room: Room, *, budget: float, thorough: bool) -> Choice:
        """The tests for a mutant: those that call its function, with all tests of a file named after its module.

        Args:
            mutant: Who is judged.
            room: Whose tests judge.
            budget: Seconds of tests after which no further one is taken.
            thorough: Take the whole room, without a limit.
        """
        files = {file: self.by_file.get(file, []) for file in room.test_files(self.root)}
        if thorough or room.is_cpp:
            return _choice(list(files.items()), float("inf") if thorough else budget)
        named = {file for file in files if _is_named_after(file, mutant.path)}
        for is_judge in self._ways_to_judge(mutant):
            chosen = {file: [test for test in tests if is_judge(file, test)] for file, tests in files.items()}
            if any(chosen.values()):
                chosen |= {file: files[file] for file in named}
                order = sorted(chosen.items(), key=lambda each: (each[0] not in named, _seconds(each[1])))
                return _choice([each for each in order if each[1]], budget)
        return _choice(list(files.items()), budget)

    def _ways_to_judge(self, mutant: Mutant) -> Iterator[Callable[[str, KnownTest], bool]]:
        """Questions to a test, the most exact one first; the first to which any test says yes selects the judges."""
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


def _seconds(tests: list[KnownTest]) -> float:
    return sum(test.seconds for test in tests)


def _choice(files: list[tuple[str, list[KnownTest]]], budget: float) -> Choice:
    names: list[str] = []
    tests: list[str] = []
    seconds = 0.0
    for file, known in files:
        if seconds > budget:
            break
        for test in known:
            if seconds <= budget:
                tests.append(test.id)
                seconds += test.seconds
        names.append(file)
    return Choice(names, tests, seconds)
