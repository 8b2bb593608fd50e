"""The delta log: what changed in the tables of a run, numbered, fenced and checked, for everybody who follows it.

May import: `tables`, the Kafka client of `data`, and what is below. Read `log.py` first; `increment.py` has one record,
`replay.py` the rules by which records count, `transport.py` what files, objects and Kafka have in common.
"""

from __future__ import annotations

from monolith.deltalog.audit import Audit, Fault, Finding
from monolith.deltalog.bases import Base
from monolith.deltalog.increment import Increment, IncrementKind
from monolith.deltalog.log import DeltaLog
from monolith.deltalog.parts import DENSE_PART, rows_part, store_of
from monolith.deltalog.reader import Lag, PartReader
from monolith.deltalog.replay import GapError, Outcome, Replay, Verdict
from monolith.deltalog.transport import Appender, Claim, Extent, Tail, Transport
from monolith.deltalog.writer import PartWriter

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
