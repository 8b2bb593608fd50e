"""Reads `areas.toml`: which files are mutated, and which tests run on their mutants."""

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
class Area:
    """A part of the project that is mutated, with its tests."""

    name: str
    files: tuple[str, ...]
    """Patterns relative to the root of the project."""
    tests: tuple[str, ...]
    """Files and folders of the Python tests that run on its mutants."""
    is_cpp: bool = False
    """Whether its files are C++: each mutant is built, and the C++ tests run first."""

    def test_files(self, root: Path) -> list[str]:
        """List its Python test files, relative to the root of the project."""
        files: list[Path] = []
        for name in self.tests:
            path = root / name
            files += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        return [file.relative_to(root).as_posix() for file in files]


@dataclass(frozen=True, slots=True)
class Config:
    """The content of `areas.toml`."""

    source: str
    """The folder from which the package is imported."""
    extension: str | None
    """The compiled module that a working copy takes from the installed package; None if the project has none."""
    areas: tuple[Area, ...]


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A mutant that no test can kill, with the reason."""

    path: str
    source_line: str
    change: str
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        """Whether this entry describes the mutant."""
        return (self.path, self.source_line, self.change) == (mutant.path, mutant.source_line, mutant.change)


def read_config(path: Path) -> Config:
    """Read `areas.toml`."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    areas = tuple(
        Area(area["name"], tuple(area["files"]), tuple(area["tests"]), bool(area.get("cpp", False)))
        for area in content["area"]
    )
    project = content["project"]
    return Config(project["source"], project.get("extension"), areas)


def read_equivalents(path: Path) -> list[Equivalent]:
    """Read the mutants that no test can kill; a missing file has none."""
    if not path.exists():
        return []
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Equivalent(**entry) for entry in content.get("mutant", [])]


def candidates(area: Area, root: Path, only: Sequence[str] = ()) -> list[Mutant]:
    """List every possible mutant of an area, or only those in files below the paths of ``only``."""
    mutants = []
    paths = sorted({path for pattern in area.files for path in root.glob(pattern) if path.is_file()})
    for path in paths:
        name = path.relative_to(root).as_posix()
        if only and not any(name == prefix or name.startswith(prefix.rstrip("/") + "/") for prefix in only):
            continue
        if name.endswith(("_test.cc", "_for_test.h")) or "/protos/" in name:
            continue
        text = path.read_text(encoding="utf-8")
        mutants += mutants_of(area.name, name, text, cpp_edits(text) if area.is_cpp else python_edits(text))
    return mutants


def in_drawn_order(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """Sort mutants in a pseudorandom order that, for the mutants of one line, does not depend on other lines."""
    return sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.key}".encode()).digest())
