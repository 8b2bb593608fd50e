"""Durable copies of stores: a folder of bucket files with a manifest that is written last.

May import: `monolith.tables.schema`, `monolith.tables.history`, `errors` and the C++ core. Read `manifest.py` first:
what it lists is the snapshot, everything else in the folder is left over from a save that did not end. Byte grammar:
docs/formats/snapshot.md.
"""

from __future__ import annotations

from monolith.tables.snapshot.manifest import FORMAT_VERSION, FileEntry, Manifest, TableEntry, read_manifest
from monolith.tables.snapshot.restore import RestoreReport, restore, verify
from monolith.tables.snapshot.save import SaveHandle, SaveOptions, SaveProgress, SaveReport, save, save_cut

__all__ = [
    "FORMAT_VERSION",
    "FileEntry",
    "Manifest",
    "RestoreReport",
    "SaveHandle",
    "SaveOptions",
    "SaveProgress",
    "SaveReport",
    "TableEntry",
    "read_manifest",
    "restore",
    "save",
    "save_cut",
    "verify",
]
