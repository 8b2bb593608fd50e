"""The recovery record of a parameter server: written in the background during training, read after a restart.

It is a part of a delta log. Grammar and rules: docs/formats/recovery.md. Read `recorder` first.

    config         location and interval of the record, and the summary of a recovery
    entries        the recorded state of each owner, and the lineage of rows
    record_log     the record: rows and weights, and states that commit them
    increment      one increment being written
    recording      interface between a server and its recorder
    recorder       writes an increment every few seconds
    chain          selects the states and the snapshot that restore rows; no I/O
    recover        recovers a server from its record and the newest checkpoint
    manager        recovers a server at its start, then continues its record
    old_files      copies a record of version 1 into the log
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
