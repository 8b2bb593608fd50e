"""Reads a log from end to end, and every base, and names what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.deltalog import Audit, Fault, Finding, IncrementKind
from monolith.deltalog.follow.base_state import BaseState
from monolith.errors import DataLossError, NotFoundError, OpError
from monolith.tables.formats.packed_blocks import PackedBlocks

if TYPE_CHECKING:
    from monolith.deltalog import Base, DeltaLog
    from monolith.observe.progress import Progress


@dataclass(slots=True)
class Report:
    """What was found."""

    place: str
    records: int = 0
    """That count."""
    bytes: int = 0
    replaced: int = 0
    """Number of records of replaced writers, which are ignored."""
    unfinished_bytes: int = 0
    """At the ends of parts: of a record that is being written, or whose writer was killed."""
    bases: int = 0
    findings: list[Finding] = field(default_factory=list)
    lost_bases: list[str] = field(default_factory=list)
    """What is wrong with bases."""

    @property
    def is_wrong(self) -> bool:
        """Whether anything is."""
        return bool(self.findings or self.lost_bases)

    @property
    def document(self) -> dict[str, Any]:
        """For JSON."""
        faults = [
            {
                "fault": each.fault.value,
                "part": each.part,
                "generation": each.generation,
                "number": each.number,
                "text": each.text,
            }
            for each in self.findings
        ]
        return {
            "place": self.place,
            "records": self.records,
            "bytes": self.bytes,
            "replaced": self.replaced,
            "unfinished_bytes": self.unfinished_bytes,
            "bases": self.bases,
            "ok": not self.is_wrong,
            "findings": faults,
            "lost_bases": self.lost_bases,
        }

    @property
    def text(self) -> str:
        """A line for each, and one at the end."""
        lines = [f"{each.fault.value}: {each.text}" for each in self.findings]
        lines += [f"base: {text}" for text in self.lost_bases]
        if self.unfinished_bytes:
            lines.append(f"unfinished: {self.unfinished_bytes} bytes at the end, an incomplete record, are not read")
        read = f"{self.place}: {self.records:,} records ({self.bytes / 1e6:,.1f} MB) and {self.bases} bases read"
        wrong = len(self.findings) + len(self.lost_bases)
        return "\n".join([*lines, f"{read}, {f'{wrong} faults' if wrong else 'all as written'}"])


def verify(log: DeltaLog, *, part: str | None, progress: Progress) -> Report:
    """Reads the records of one part, or of all, and every base.

    Raises:
        InvalidArgumentError, NotFoundError: there is no such part, or no log.
    """
    report = Report(log.place)
    parts = log.parts()
    if part is not None and part not in parts:
        raise NotFoundError(f"delta log '{log.place}': there is no part {part!r}, it has {parts}")
    bases = log.bases()
    for each in parts if part is None else [part]:
        _verify_part(log, each, report, progress)
        _verify_beginning(log, each, bases, report)
    for base in bases:
        report.bases += 1
        try:
            BaseState(base).verify()
        except OpError as error:
            report.lost_bases.append(f"{base.name!r}: {error.message}")
    return report


def _verify_part(log: DeltaLog, part: str, report: Report, progress: Progress) -> None:
    audit = Audit(part, place=log.place)
    tail = log.transport.tail(part, None)
    try:
        while True:
            try:
                record = tail.next()
            except DataLossError as error:
                report.findings.append(Finding(fault=Fault.CORRUPT, part=part, text=error.message))
                tail.skip()
                continue
            if record is None:
                break
            faults = len(audit.findings)
            found = audit.take(record, where=tail.where)
            if found is None and len(audit.findings) > faults and audit.findings[-1].fault is Fault.CORRUPT:
                tail.skip()
            elif found is not None and found.kind is IncrementKind.ROWS:
                _verify_rows(found.payload, part, found.number, tail.where, report)
            report.bytes += len(record)
            progress.update(1, faults=len(audit.findings))
        report.unfinished_bytes += tail.unread_bytes()
    finally:
        tail.close()
    report.records += audit.records
    report.replaced += audit.replaced
    report.findings += audit.findings


def _verify_rows(payload: bytes, part: str, number: int, where: str, report: Report) -> None:
    """The record is as it was written; whether that were rows is seen here."""
    try:
        for _ in PackedBlocks(payload):  # made one by one, with their checksums
            pass
    except DataLossError as error:
        text = f"part {part!r}, increment {number}: {error.message} ({where})"
        report.findings.append(Finding(fault=Fault.CORRUPT, part=part, text=text, number=number))


def _verify_beginning(log: DeltaLog, part: str, bases: list[Base], report: Report) -> None:
    """A log that does not begin at its first increment needs a base that reaches as far."""
    extent = log.extent(part)
    if extent is None or extent.first == 0:
        return
    if not any(base.holds(part) and base.numbers[part] + 1 >= extent.first for base in bases):
        text = (
            f"delta log '{log.place}', part {part!r}: it begins at increment {extent.first}, and no base holds what was"
            " before; no follower can start from it"
        )
        report.findings.append(Finding(fault=Fault.GAP, part=part, text=text, number=0))
