"""Work on a complete delta log: reading it from end to end with every base, and saving its state as a base."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.deltalog import Audit, Fault, Finding, IncrementKind
from monolith.deltalog.follow import BaseState, stores_of_log
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError, OpError
from monolith.files import LocalStorage, named_errors, remove_folder
from monolith.online import Follower
from monolith.tables.formats import PackedBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monolith.deltalog import Base, DeltaLog
    from monolith.observe import Progress


@dataclass(slots=True)
class Report:
    """Result of reading a log and its bases."""

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
        """Whether the log or a base has a fault."""
        return bool(self.findings or self.lost_bases)

    @property
    def document(self) -> dict[str, Any]:
        """The report as JSON values."""
        faults = [
            {
                "fault": finding.fault.value,
                "part": finding.part,
                "generation": finding.generation,
                "number": finding.number,
                "text": finding.text,
            }
            for finding in self.findings
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
        """A line for each fault, and a summary at the end."""
        lines = [f"{finding.fault.value}: {finding.text}" for finding in self.findings]
        lines += [f"base: {text}" for text in self.lost_bases]
        if self.unfinished_bytes:
            lines.append(f"unfinished: {self.unfinished_bytes} bytes at the end, an incomplete record, are not read")
        read = f"{self.place}: {self.records:,} records ({self.bytes / 1e6:,.1f} MB) and {self.bases} bases read"
        wrong = len(self.findings) + len(self.lost_bases)
        return "\n".join([*lines, f"{read}, {f'{wrong} faults' if wrong else 'all as written'}"])


def verify(log: DeltaLog, *, part: str | None, progress: Progress) -> Report:
    """Reads the records of one part, or of all, and every base."""
    report = Report(log.place)
    parts = log.parts()
    if part is not None and part not in parts:
        raise NotFoundError(f"delta log '{log.place}': there is no part {part!r}, it has {parts}")
    bases = log.bases()
    for name in parts if part is None else [part]:
        if not _verify_part(log, name, report, progress):
            _verify_beginning(log, name, bases, report)
    for base in bases:
        report.bases += 1
        try:
            BaseState(base).verify()
        except OpError as error:
            report.lost_bases.append(f"{base.name!r}: {error.message}")
    return report


def _verify_part(log: DeltaLog, part: str, report: Report, progress: Progress) -> bool:
    """Returns whether the part has states, as a recovery record: then it needs no base."""
    has_state = False
    audit = Audit(part, place=log.place)
    tail = log.transport.tail(part, None)
    try:
        for increment, num_bytes in audit.read(tail):
            if increment is not None and increment.kind is IncrementKind.ROWS:
                _verify_rows(increment.payload, part, increment.number, tail.where, report)
            has_state = has_state or (increment is not None and increment.kind is IncrementKind.STATE)
            report.bytes += num_bytes
            progress.update(1, faults=len(audit.findings))
        report.unfinished_bytes += tail.unread_bytes()
    finally:
        tail.close()
    report.records += audit.records
    report.replaced += audit.replaced
    report.findings += audit.findings
    return has_state


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


_PREFIX = "compact-"
"""Of the names of bases that are made here."""
_LOCK = "compact.lock"


def compact(log: DeltaLog, *, keep_bases: int, progress: Progress) -> tuple[Base, Mapping[str, int]]:
    """Compacts a log. Returns the new base, and the number of the first remaining increment of each part.

    Leftovers of a killed compaction are removed first, if bases are in a folder of a file system; in an object store
    they cannot be distinguished from a compaction in progress.

    Raises:
        FailedPreconditionError: the log has no rows yet, or another compaction of it is in progress.
    """
    if keep_bases < 1:
        raise ValueError(f"--keep_bases must be >= 1, got {keep_bases}")
    stores = stores_of_log(log)
    if not stores:
        raise FailedPreconditionError(f"delta log '{log.place}': it has no rows yet, so there is nothing to save")
    with (
        _alone(log),
        Follower(stores, log, on_increment=lambda increment: progress.update(1, step=increment.step)) as follower,
    ):
        for name in _remove_unfinished(log):
            progress.write(f"removing {name}, which was never finished")
        follower.catch_up()
        lag = follower.lag
        if lag.increments:
            progress.write(f"{lag.increments} unfinished increments ({lag.bytes} bytes) are not in the base")
        progress.write("saving a base")
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        base = follower.save_base(f"{_PREFIX}{moment}-{secrets.token_hex(2)}", keep_bases=keep_bases)
    firsts = {part: extent.first for part in log.parts() if (extent := log.extent(part)) is not None}
    return base, firsts


@contextmanager
def _alone(log: DeltaLog) -> Iterator[None]:
    """Excludes other compactions of the log by processes that share its folder."""
    folder = _local_folder(log)
    if folder is None:
        yield
        return
    bases = LocalStorage(folder)
    bases.make()
    lock = bases.lock(_LOCK)
    if lock is None:
        raise FailedPreconditionError(
            f"delta log '{log.place}': another compaction is in progress, which holds '{bases.place(_LOCK)}'; wait for"
            " its end"
        )
    with lock.require_held():
        yield


def _remove_unfinished(log: DeltaLog) -> list[str]:
    """Removes folders of bases that the log does not name; their names."""
    folder = _local_folder(log)
    named = {base.name for base in log.bases()}
    left = (
        []
        if folder is None
        else [base_folder for base_folder in sorted(folder.glob(f"{_PREFIX}*/")) if base_folder.name not in named]
    )
    for base_folder in left:
        with named_errors(str(base_folder), "removed"):
            remove_folder(str(base_folder))
    return [base_folder.name for base_folder in left]


def _local_folder(log: DeltaLog) -> Path | None:
    """Returns where bases go; None: into an object store, or nowhere."""
    folder = log.base_folder
    return None if folder is None or "://" in folder else Path(folder)
