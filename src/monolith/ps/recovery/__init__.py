"""The recovery record of a parameter server: written in the background during training, read after a restart.

Byte grammar and rules: docs/formats/recovery.md. Read `recorder` first.

    config         location and interval of the record
    entries        metadata of each owner in one file of the record
    record_file    one file: created atomically, verified by checksums
    record_folder  the files of one server
    record_log     index of the files in the process that writes them
    row_copy       copies the changes of a store, holding pushes only briefly
    increment      one file being written
    lineage        the snapshots in the history of a store's rows
    recording      interface between a server and its recorder
    recorder       writes an increment every few seconds
    chain          selects the files and the snapshot that restore rows; no I/O
    recovering     recovers a server
"""

from __future__ import annotations

from monolith.ps.recovery.config import RecoveryConfig
from monolith.ps.recovery.recovered import Recovered

__all__ = ["Recovered", "RecoveryConfig"]
