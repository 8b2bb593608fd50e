"""A process that writes a delta log, a recovery record and the state of a joiner, each in a folder of its own.

durable_writers.py LIBRARY FOLDER RECORD: writes down what that changes, up to the last thing that was acknowledged
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from file_faults.operations import Operations
from monolith.deltalog import DeltaLog, IncrementKind
from monolith.ps.recovery.entries import RecordMeta
from monolith.ps.recovery.record_file import RecoveryFileWriter
from monolith.ps.recovery.record_folder import RecordFolder
from monolith.ps.recovery.record_log import RecordLog
from online.joiner.joins import FolderJoin, append, traffic

PART = "model.0000-1024"
INCREMENTS = 6
LOGS = {"log": 1 << 20, "rolled": 600}
"""Name -> bytes of a segment."""
WRITER = 5
IMPRESSIONS = 60


def write_logs(folder: Path) -> None:
    """One of a single segment, and one of several."""
    for name, segment_bytes in LOGS.items():
        with DeltaLog(folder / name, segment_bytes=segment_bytes).open_writer(PART) as writer:
            for _ in range(INCREMENTS):
                writer.append(kind=IncrementKind.DENSE, payload=b"weights")


def write_record(folder: Path) -> None:
    """Claims a record, and claims another one and appends a file to it."""
    RecordFolder(str(folder / "claimed"), 0, 1).claim(WRITER)
    files = RecordFolder(str(folder / "recovery"), 0, 1)
    files.make()
    files.claim(WRITER)
    log = RecordLog(files, WRITER)

    def fill(_: RecoveryFileWriter, number: int) -> RecordMeta:
        return replace(log.last, number=number)

    log.append(fill, rate=None)


def make_inputs(folder: Path) -> None:
    """What is joined, and the folders that others make."""
    for name in ("claimed", "recovery", "join"):
        (folder / name).mkdir()
    impressions, actions, _ = traffic(IMPRESSIONS)
    join = FolderJoin(folder / "join")
    append(join.impressions, impressions)
    append(join.actions, actions)


def write_join(folder: Path) -> None:
    """Takes all events, and neither closes windows nor the state."""
    partition = FolderJoin(folder / "join", batch_records=20).partition()
    partition.open()
    while partition.step() or not partition.is_at_end():
        pass


def main(library: str, folder: str, record: str) -> None:
    """Writes all three."""
    with Operations(library).recorded(Path(folder), Path(record)):
        for write in (write_logs, write_record, write_join):
            write(Path(folder))
    os._exit(0)  # as a process that is killed: nothing is closed


if __name__ == "__main__":
    main(*sys.argv[1:])
