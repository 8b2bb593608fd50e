"""The delta log: the changes of a run's tables as numbered, fenced and checksummed records for its followers.

May import: `tables`, the Kafka client of `data`, and lower packages. Read `log.py` first; `increment.py` defines one
record, `replay.py` the rules that decide which records count, `transport.py` the interface that files, objects and
Kafka implement.
"""

from __future__ import annotations

from monolith.deltalog.increment import DENSE_PART, Increment, IncrementKind, rows_part, store_of
from monolith.deltalog.log import Base, DeltaLog
from monolith.deltalog.part import Lag, PartReader, PartWriter
from monolith.deltalog.replay import Audit, Fault, Finding, GapError, Outcome, Replay, Verdict
from monolith.deltalog.transport import Appender, Claim, Extent, Tail, Transport

__all__ = [
    "Appender",
    "Audit",
    "Base",
    "Claim",
    "DENSE_PART",
    "DeltaLog",
    "Extent",
    "Fault",
    "Finding",
    "GapError",
    "Increment",
    "IncrementKind",
    "Lag",
    "Outcome",
    "PartReader",
    "PartWriter",
    "Replay",
    "Tail",
    "Transport",
    "Verdict",
    "rows_part",
    "store_of",
]
