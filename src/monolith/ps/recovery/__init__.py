"""The recovery record of a parameter server: written in the background during training, read after a restart.

Byte grammar and rules: docs/formats/recovery.md. Read `recorder` first.

    config         location and interval of the record, and the summary of a recovery
    entries        metadata of each owner in one file of the record, and the lineage of rows
    record_file    one file: created atomically, verified by checksums
    record_folder  the files of one server
    record_log     index of the files in the process that writes them
    increment      one file being written
    recording      interface between a server and its recorder
    recorder       writes an increment every few seconds
    chain          selects the files and the snapshot that restore rows; no I/O
    recovering     recovers a server
    keeping        reads the record at the start of a server, then continues it
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
