"""docs/parity.md as data: its rows, the tests they name, and why one of those may be skipped in CI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_COUNTERPART = "no counterpart: "

_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"`([^`]+)`(?: \(skipped in CI: ([^)]+)\))?")


@dataclass(frozen=True, slots=True)
class Row:
    """A module of the original."""

    module: str
    purpose: str
    symbols: list[str]
    tests: dict[str, str]
    """Id of each test, and why CI may skip it; empty if it may not."""
    status: str
    differences: str

    @property
    def claims(self) -> bool:
        return self.status != "open"


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the original's test of its saver."""

    name: str
    shown_by: str
    tests: dict[str, str]


def _cells(num_cells: int) -> list[list[str]]:
    lines = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8").splitlines()
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]
    return [cells for cells in found if len(cells) == num_cells]


@cache
def rows() -> tuple[Row, ...]:
    """The table of modules."""
    return tuple(
        Row(module.strip("`"), purpose, _CODE.findall(lives), dict(_TEST.findall(shown_by)), status, differences)
        for module, purpose, lives, shown_by, status, differences in _cells(6)
    )


@cache
def cases() -> tuple[Case, ...]:
    """The table of cases."""
    return tuple(Case(name.strip("`"), shown_by, dict(_TEST.findall(shown_by))) for name, shown_by in _cells(2))


@cache
def claimed_tests() -> dict[str, str]:
    """Every test that the page names, and why CI may skip it; empty if it may not."""
    by_place = [*(row.tests for row in rows()), *(case.tests for case in cases())]
    return {name: reason for tests in by_place for name, reason in tests.items()}
