"""A small fault in a file: its location and the replacement text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of one span of a text."""

    start: int
    """Offset of the first character that is replaced."""
    end: int
    """Offset after the last character that is replaced."""
    replacement: str
    scope: str
    """Qualified name of the function or class that contains the span; empty at module level and in C++."""

    def apply(self, text: str) -> str:
        """Return the text with the fault."""
        return text[: self.start] + self.replacement + text[self.end :]


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of one file of the project."""

    area: str
    path: str
    """Relative to the root of the project, with slashes."""
    line: int
    """Number of the first changed line, from 1."""
    before: str
    """The text that the edit replaces."""
    source_line: str
    """The first changed line, without leading and trailing space."""
    occurrence: int
    """Number of equal edits of equal lines above this one in the file."""
    edit: Edit

    @property
    def change(self) -> str:
        """The edit in one line, such as ``< -> <=``."""
        return f"{_one_line(self.before)} -> {_one_line(self.edit.replacement)}"

    @property
    def key(self) -> str:
        """Identifies the mutant as long as its line is unchanged; other lines of the file may change."""
        parts = (self.path, self.edit.scope, self.source_line, self.change, str(self.occurrence))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def mutants_of(area: str, path: str, text: str, edits: list[Edit]) -> list[Mutant]:
    """Return the edits of a file as mutants, in the order of the file."""
    lines = text.split("\n")
    seen: dict[tuple[str, str, str], int] = {}
    mutants = []
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end, edit.replacement)):
        line = text.count("\n", 0, edit.start) + 1
        before = text[edit.start : edit.end]
        source_line = lines[line - 1].strip()
        same = (edit.scope, source_line, f"{before}\0{edit.replacement}")
        seen[same] = seen.get(same, -1) + 1
        mutants.append(Mutant(area, path, line, before, source_line, seen[same], edit))
    return mutants


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "(nothing)"
