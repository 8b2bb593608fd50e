"""Durable copies of whole groups: a folder of bucket files with a manifest that is written last.

May import: `monolith.tables.schema`, `monolith.tables.cut`, `monolith.tables.bucket_owner`, `errors` and the C++ core.
Read `manifest.py` first: what it lists is the snapshot, everything else in the folder is left over from a save that did
not end. Byte grammar: docs/formats/snapshot.md.
"""

from __future__ import annotations

from monolith.tables.snapshot.manifest import FORMAT_VERSION, FileEntry, Manifest, TableEntry, read_manifest
from monolith.tables.snapshot.restore import PreparedRestore, PreparedRestores, RestoreReport, restore, verify
from monolith.tables.snapshot.save import SaveHandle, SaveOptions, SaveProgress, SaveReport, save, save_cuts

__all__ = [
    "FORMAT_VERSION",
    "FileEntry",
    "Manifest",
    "PreparedRestore",
    "PreparedRestores",
    "RestoreReport",
    "SaveHandle",
    "SaveOptions",
    "SaveProgress",
    "SaveReport",
    "TableEntry",
    "read_manifest",
    "restore",
    "save",
    "save_cuts",
    "verify",
]
