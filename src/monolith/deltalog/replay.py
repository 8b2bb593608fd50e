"""Decides which records of a part count: a pure state machine, fed with the records in log order.

Readers run it to decide which records to apply, and writers of a shared stream to detect that they were replaced. So
all processes reach the same result, whatever concurrent writers have written.

1. A generation begins with its opening, which takes the next number; nothing of an older one counts from then on.
2. Of two writers with the same generation, the one whose opening came first counts.
3. Numbers have no gaps. A number that was already seen is a duplicate and is ignored.
4. Faults are sticky: after a gap or a corrupt record, every later record gets the same outcome.

`Replay` stops at the first faulty record, as a reader must; `Audit` continues after each fault, and reports all
faults.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from monolith.deltalog.increment import Increment, IncrementKind, decode
from monolith.errors import DataLossError, FailedPreconditionError, OpError
from monolith.tables import Schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.deltalog.transport import Tail


class GapError(DataLossError):
    """Increments that a reader needs are missing; it has to start at a base."""


class Verdict(enum.Enum):
    """Decision about a record."""

    APPLY = "apply"
    NEW_GENERATION = "new generation"
    """An opening: later records of the previous writer do not count."""
    IGNORE = "ignore"
    """A duplicate, or a record of a replaced writer."""
    GAP = "gap"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    """A record of another model."""

    @property
    def is_wrong(self) -> bool:
        """Whether a reader has to stop."""
        return self in {Verdict.GAP, Verdict.CORRUPT, Verdict.FOREIGN}

    @property
    def counts(self) -> bool:
        """Whether the record is part of the log."""
        return self in {Verdict.APPLY, Verdict.NEW_GENERATION}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision about a record, with its increment and an explanation."""

    verdict: Verdict
    increment: Increment | None = None
    """Decoded increment; None if the record is unreadable."""
    text: str = ""
    """What is wrong, or why the record is ignored: part, expected, got, and what to do."""

    def require(self) -> Increment:
        """Returns the increment of a record that counts or is ignored.

        Raises:
            GapError: increments are missing.
            DataLossError: the record is corrupt.
            FailedPreconditionError: the record belongs to another model.
        """
        errors: dict[Verdict, type[OpError]] = {
            Verdict.GAP: GapError,
            Verdict.CORRUPT: DataLossError,
            Verdict.FOREIGN: FailedPreconditionError,
        }
        if self.verdict in errors or self.increment is None:
            raise errors.get(self.verdict, DataLossError)(self.text)
        return self.increment


class Replay:
    """State machine for one part.

    Args:
        part: Its name.
        place: Path or URL of the log, for messages.
        next_number: The first expected number; None: any.
        schema: Expected schema of the rows; None: any.
    """

    def __init__(self, part: str, *, place: str, next_number: int | None = None, schema: Schema | None = None) -> None:
        self.part = part
        self.place = place
        self.next_number = next_number
        """Next expected number; None before the first record."""
        self.generation: int | None = None
        """Generation of the last record that counted; None before the first."""
        self.writer: int | None = None
        self.expect(schema)
        self.wrong: Outcome | None = None
        """Outcome of the first faulty record; None: no fault."""

    def expect(self, schema: Schema | None) -> None:
        """Sets the expected schema of the rows; None: any."""
        self.schema = schema
        self._digest = 0 if schema is None else schema.digest

    def take(self, record: bytes, *, where: str = "") -> Outcome:
        """Decides about the next record; `where` is its location, for messages."""
        if self.wrong is not None:
            return self.wrong
        outcome = self._judged(record)
        if where and outcome.text:
            outcome = replace(outcome, text=f"{outcome.text} ({where})")
        if outcome.verdict.is_wrong:
            self.wrong = outcome
        elif outcome.verdict.counts and outcome.increment is not None:
            self.next_number = outcome.increment.number + 1
            self.generation = outcome.increment.generation
            self.writer = outcome.increment.writer
        return outcome

    @property
    def _subject(self) -> str:
        generation = "" if self.generation is None else f", generation {self.generation}"
        return f"delta log '{self.place}', part {self.part!r}{generation}"

    def _judged(self, record: bytes) -> Outcome:
        expected = "the first record" if self.next_number is None else f"increment {self.next_number}"
        try:
            increment = decode(record, origin=f"{self._subject}, {expected}")
        except DataLossError as error:
            return Outcome(Verdict.CORRUPT, None, f"{error.message}; resume from a later base")
        if increment.part != self.part:
            return Outcome(
                Verdict.CORRUPT, increment, f"{self._subject}, {expected}: the record is of part {increment.part!r}"
            )
        passed_over = self._why_passed_over(increment)
        if passed_over:
            return Outcome(Verdict.IGNORE, increment, f"{self._subject}: increment {increment.number} {passed_over}")
        missing = self._what_is_missing(increment)
        if missing:
            return Outcome(Verdict.GAP, increment, f"{self._subject}: {missing}; resume from a later base")
        differences = self._differences(increment)
        if differences:
            return Outcome(Verdict.FOREIGN, increment, f"{self._subject}, {expected}: of another model: {differences}")
        is_new = increment.kind is IncrementKind.OPENING
        return Outcome(Verdict.NEW_GENERATION if is_new else Verdict.APPLY, increment)

    def _why_passed_over(self, increment: Increment) -> str:
        if self.generation is not None and increment.generation < self.generation:
            return f"is of generation {increment.generation}, which generation {self.generation} has replaced"
        if self.generation == increment.generation and increment.writer != self.writer:
            return f"is of a writer that came second to open generation {increment.generation}"
        if self.next_number is not None and increment.number < self.next_number:
            return f"was read before, increment {self.next_number} is next"
        return ""

    def _what_is_missing(self, increment: Increment) -> str:
        if self.next_number is not None and increment.number > self.next_number:
            number = increment.number
            return f"increments {self.next_number} to {number - 1} are missing before increment {number}"
        is_first = self.generation is None
        if not is_first and increment.generation != self.generation and increment.kind is not IncrementKind.OPENING:
            return f"the opening of generation {increment.generation} is missing before increment {increment.number}"
        return ""

    def _differences(self, increment: Increment) -> str:
        if self.schema is None or increment.kind is IncrementKind.DENSE or increment.schema_digest == self._digest:
            return ""
        if increment.kind is IncrementKind.OPENING:
            try:
                theirs = Schema.parse(increment.payload.decode())
            except (DataLossError, UnicodeDecodeError) as error:
                return f"its schema cannot be read: {error}"
            return "; ".join(self.schema.differences(theirs)) or "its schema has another digest"
        return f"schema digest {self._digest:#x} expected, got {increment.schema_digest:#x}"


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
    """One fault of a log, and its location."""

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
        self._faults: list[Finding] = []
        self._missing: list[tuple[range, Finding]] = []
        """Numbers of each gap, which may still appear later (reordered)."""

    @property
    def findings(self) -> list[Finding]:
        """All faults found so far."""
        return self._faults + [finding for _, finding in self._missing]

    def read(self, tail: Tail) -> Iterator[tuple[Increment | None, int]]:
        """Checks the records from here to the current end; yields the increment, None if it does not count, and size.

        After an unreadable record it continues with the next one that can be found.
        """
        while True:
            try:
                record = tail.next()
            except DataLossError as error:
                self._faults.append(self._finding(Fault.CORRUPT, error.message, None, None))
                tail.skip()
                continue
            if record is None:
                return
            faults = len(self._faults)
            increment = self.take(record, where=tail.where)
            if increment is None and any(finding.fault is Fault.CORRUPT for finding in self._faults[faults:]):
                tail.skip()
            yield increment, len(record)

    def take(self, record: bytes, *, where: str) -> Increment | None:
        """Checks the next record; returns its increment if the record counts."""
        expected = self._replay.next_number
        outcome = self._replay.take(record, where=where)
        increment = outcome.increment
        if outcome.verdict is Verdict.IGNORE and increment is not None:
            self._judge_ignored(outcome, increment)
            return None
        if outcome.verdict.is_wrong:
            self._judge_wrong(outcome, expected)
            if increment is None or increment.part != self.part:
                return None
        if increment is not None:
            self.records += 1
            self._remember_schema(increment)
        return increment

    def _judge_ignored(self, outcome: Outcome, increment: Increment) -> None:
        for index, (numbers, gap) in enumerate(self._missing):
            if increment.number in numbers:
                rest = (range(numbers.start, increment.number), range(increment.number + 1, numbers.stop))
                self._missing[index : index + 1] = [(part, gap) for part in rest if part]
                self._add(Fault.REORDERED, f"{outcome.text}: it comes too late", increment)
                return
        if (increment.generation, increment.writer) == (self._replay.generation, self._replay.writer):
            self._add(Fault.DOUBLED, outcome.text, increment)
        else:
            self.replaced += 1

    def _judge_wrong(self, outcome: Outcome, expected: int | None) -> None:
        increment, generation = outcome.increment, self._replay.generation
        if outcome.verdict is Verdict.GAP and increment is not None:
            numbers = range(increment.number if expected is None else expected, increment.number)
            gap = self._finding(Fault.GAP, outcome.text, increment.generation, numbers.start)
            self._missing.append((numbers or range(increment.number, increment.number + 1), gap))
        else:
            fault = Fault.FOREIGN if outcome.verdict is Verdict.FOREIGN else Fault.CORRUPT
            self._faults.append(self._finding(fault, outcome.text, generation, expected))
        self._go_on_behind(None if outcome.verdict is Verdict.CORRUPT else increment)

    def _go_on_behind(self, increment: Increment | None) -> None:
        """Continues after a faulty record with the next number; after an unreadable one, any number is accepted."""
        before = self._replay
        is_foreign = before.wrong is not None and before.wrong.verdict is Verdict.FOREIGN
        self._replay = Replay(self.part, place=self._place, schema=None if is_foreign else before.schema)
        if increment is not None:
            self._replay.next_number = increment.number + 1
            self._replay.generation, self._replay.writer = increment.generation, increment.writer
        else:
            self._replay.generation, self._replay.writer = before.generation, before.writer

    def _remember_schema(self, increment: Increment) -> None:
        """Takes the schema from the first opening, or from a later one that starts at a base of its own."""
        if increment.kind is not IncrementKind.OPENING or not increment.payload:
            return
        if self._replay.schema is None or increment.base is not None:
            try:
                self._replay.expect(Schema.parse(increment.payload.decode()))
            except (DataLossError, UnicodeDecodeError) as error:
                subject = f"delta log '{self._place}', part {self.part!r}, increment {increment.number}"
                self._add(Fault.CORRUPT, f"{subject}: no schema: {error}", increment)

    def _add(self, fault: Fault, text: str, increment: Increment) -> None:
        self._faults.append(self._finding(fault, text, increment.generation, increment.number))

    def _finding(self, fault: Fault, text: str, generation: int | None, number: int | None) -> Finding:
        return Finding(fault=fault, part=self.part, text=text, generation=generation, number=number)
