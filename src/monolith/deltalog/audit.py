"""Finds all faults in the records of a part: a pure state machine that continues after each fault.

`Replay` stops at the first faulty record, as a reader must; `Audit` reports all of them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.deltalog.increment import IncrementKind
from monolith.deltalog.replay import Replay, Verdict
from monolith.errors import DataLossError
from monolith.tables.schema import Schema

if TYPE_CHECKING:
    from monolith.deltalog.increment import Increment
    from monolith.deltalog.replay import Outcome


class Fault(enum.Enum):
    """Kind of a fault in a log."""

    GAP = "gap"
    """Increments are missing."""
    CORRUPT = "corrupt"
    """A record differs from what was written."""
    FOREIGN = "foreign"
    """The record belongs to another model."""
    DOUBLED = "doubled"
    """The increment is a duplicate."""
    REORDERED = "reordered"
    """The increment follows one with a higher number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault."""

    fault: Fault
    part: str
    text: str
    """Description and location: part, generation, number, file and offset."""
    generation: int | None = None
    number: int | None = None
    """Number of the increment; for a gap, of the first missing increment."""


class Audit:
    """State machine for one part. Feed it with `take`, then read `findings`."""

    def __init__(self, part: str, *, place: str) -> None:
        self.part = part
        self.records = 0
        """Number of records that count."""
        self.replaced = 0
        """Number of records of replaced writers; not a fault."""
        self._place = place
        self._replay = Replay(part, place=place)
        self._found: list[Finding] = []
        self._missing: list[tuple[range, Finding]] = []
        """Numbers of each gap, which may still appear later (reordered)."""

    @property
    def findings(self) -> list[Finding]:
        """All faults found so far."""
        return self._found + [finding for _, finding in self._missing]

    def take(self, record: bytes, *, where: str) -> Increment | None:
        """Checks the next record; returns its increment if the record counts."""
        expected = self._replay.next_number
        outcome = self._replay.take(record, where=where)
        found = outcome.increment
        if outcome.verdict is Verdict.IGNORE and found is not None:
            self._judge_ignored(outcome, found)
            return None
        if outcome.verdict.is_wrong:
            self._judge_wrong(outcome, expected)
            if found is None or found.part != self.part:
                return None
        if found is not None:
            self.records += 1
            self._remember_schema(found)
        return found

    def _judge_ignored(self, outcome: Outcome, found: Increment) -> None:
        for index, (numbers, gap) in enumerate(self._missing):
            if found.number in numbers:
                rest = (range(numbers.start, found.number), range(found.number + 1, numbers.stop))
                self._missing[index : index + 1] = [(part, gap) for part in rest if part]
                text = f"{outcome.text}: it comes too late"
                self._add(Fault.REORDERED, text, generation=found.generation, number=found.number)
                return
        if (found.generation, found.writer) == (self._replay.generation, self._replay.writer):
            self._add(Fault.DOUBLED, outcome.text, generation=found.generation, number=found.number)
        else:
            self.replaced += 1

    def _judge_wrong(self, outcome: Outcome, expected: int | None) -> None:
        found, generation = outcome.increment, self._replay.generation
        if outcome.verdict is Verdict.GAP and found is not None:
            numbers = range(found.number if expected is None else expected, found.number)
            gap = Finding(
                fault=Fault.GAP, part=self.part, text=outcome.text, generation=found.generation, number=numbers.start
            )
            self._missing.append((numbers or range(found.number, found.number + 1), gap))
        else:
            fault = Fault.FOREIGN if outcome.verdict is Verdict.FOREIGN else Fault.CORRUPT
            self._add(fault, outcome.text, generation=generation, number=expected)
        self._go_on_behind(None if outcome.verdict is Verdict.CORRUPT else found)

    def _go_on_behind(self, found: Increment | None) -> None:
        """Continues after a faulty record with the next number; after an unreadable one, any number is accepted."""
        before = self._replay
        is_foreign = before.wrong is not None and before.wrong.verdict is Verdict.FOREIGN
        self._replay = Replay(self.part, place=self._place, schema=None if is_foreign else before.schema)
        if found is not None:
            self._replay.next_number = found.number + 1
            self._replay.generation, self._replay.writer = found.generation, found.writer
        else:
            self._replay.generation, self._replay.writer = before.generation, before.writer

    def _remember_schema(self, found: Increment) -> None:
        """Takes the schema from the first opening, or from a later one that starts at a base of its own."""
        if found.kind is not IncrementKind.OPENING or not found.payload:
            return
        if self._replay.schema is None or found.base is not None:
            try:
                self._replay.schema = Schema.parse(found.payload.decode())
            except (DataLossError, UnicodeDecodeError) as error:
                text = f"delta log '{self._place}', part {self.part!r}, increment {found.number}: no schema: {error}"
                self._add(Fault.CORRUPT, text, generation=found.generation, number=found.number)

    def _add(self, fault: Fault, text: str, *, generation: int | None, number: int | None) -> None:
        self._found.append(Finding(fault=fault, part=self.part, text=text, generation=generation, number=number))
