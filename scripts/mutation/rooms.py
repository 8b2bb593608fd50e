"""What is mutated and by which tests it is judged, as `rooms.toml` says it."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mutation.cpp_rules import cpp_edits
from mutation.mutant import Mutant, mutants_of
from mutation.python_rules import python_edits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Room:
    """A part of the project whose rules are tried."""

    name: str
    files: tuple[str, ...]
    """Patterns from the root of the project."""
    tests: tuple[str, ...]
    """Files and folders of Python tests that may notice a fault."""
    is_cpp: bool = False
    """Whether it is built, and judged by the C++ tests first."""

    def test_files(self, root: Path) -> list[str]:
        """Its Python test files, from the root of the project."""
        found = []
        for name in self.tests:
            path = root / name
            found += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        return [each.relative_to(root).as_posix() for each in found]


@dataclass(frozen=True, slots=True)
class Rooms:
    """A whole configuration."""

    source: str
    """The folder from which the package is imported."""
    extension: str | None
    """The compiled module that a private copy takes over from the installed package; None where there is none."""
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A mutant that no test can kill, with the reason."""

    path: str
    source_line: str
    change: str
    reason: str

    def is_of(self, mutant: Mutant) -> bool:
        """Whether it speaks of this mutant."""
        return (self.path, self.source_line, self.change) == (mutant.path, mutant.source_line, mutant.change)


def read_rooms(path: Path) -> Rooms:
    """Read a configuration."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    rooms = tuple(
        Room(each["name"], tuple(each["files"]), tuple(each["tests"]), bool(each.get("cpp", False)))
        for each in content["room"]
    )
    project = content["project"]
    return Rooms(project["source"], project.get("extension"), rooms)


def read_equivalents(path: Path) -> list[Equivalent]:
    """Read the mutants that live by right; a file that is not there holds none."""
    if not path.exists():
        return []
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Equivalent(**each) for each in content.get("mutant", [])]


def candidates(room: Room, root: Path, only: Sequence[str] = ()) -> list[Mutant]:
    """Every mutant that a room offers, or those of the files below the paths given by ``only``."""
    found = []
    paths = sorted({path for pattern in room.files for path in root.glob(pattern) if path.is_file()})
    for path in paths:
        name = path.relative_to(root).as_posix()
        if only and not any(name == each or name.startswith(each.rstrip("/") + "/") for each in only):
            continue
        if name.endswith(("_test.cc", "_for_test.h")) or "/protos/" in name:
            continue
        text = path.read_text(encoding="utf-8")
        found += mutants_of(room.name, name, text, cpp_edits(text) if room.is_cpp else python_edits(text))
    return found


def in_drawn_order(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """All of them in a random order; an edit of one line of the project moves no mutant of another line."""
    return sorted(mutants, key=lambda each: hashlib.sha256(f"{seed}:{each.key}".encode()).digest())
