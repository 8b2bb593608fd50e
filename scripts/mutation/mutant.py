"""One small fault: where it is, and what stands there instead."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of one stretch of a text."""

    start: int
    """Offset of the first character that is replaced."""
    end: int
    """Offset behind the last one."""
    replacement: str
    scope: str
    """The function or class it is in, by its qualified name; empty outside of both, and in C++."""

    def apply(self, text: str) -> str:
        """The text with the fault in it."""
        return text[: self.start] + self.replacement + text[self.end :]


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of one file of the project."""

    room: str
    path: str
    """From the root of the project, with slashes."""
    line: int
    """The first changed one; lines count from 1."""
    before: str
    """What the edit replaces."""
    source_line: str
    """The whole line, without the space around it."""
    occurrence: int
    """How many equal edits of equal lines stand above this one in the file."""
    edit: Edit

    @property
    def change(self) -> str:
        """What was done, in one line."""
        return f"{_one_line(self.before)} -> {_one_line(self.edit.replacement)}"

    @property
    def key(self) -> str:
        """Names the mutant as long as its line stays as it is; lines above may come and go."""
        parts = (self.path, self.edit.scope, self.source_line, self.change, str(self.occurrence))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def mutants_of(room: str, path: str, text: str, edits: list[Edit]) -> list[Mutant]:
    """The edits of a file as mutants, in the order of the file."""
    lines = text.split("\n")
    seen: dict[tuple[str, str, str], int] = {}
    mutants = []
    for edit in sorted(set(edits), key=lambda each: (each.start, each.end, each.replacement)):
        line = text.count("\n", 0, edit.start) + 1
        before = text[edit.start : edit.end]
        source_line = lines[line - 1].strip()
        same = (edit.scope, source_line, f"{before}\0{edit.replacement}")
        seen[same] = seen.get(same, -1) + 1
        mutants.append(Mutant(room, path, line, before, source_line, seen[same], edit))
    return mutants


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "(nothing)"
