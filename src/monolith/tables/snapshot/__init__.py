"""Durable copies of stores: a folder of bucket files with a manifest that is written last.

May import: `monolith.tables.schema`, `monolith.tables.history`, `errors` and the C++ core. Read `manifest.py` first:
what it lists is the snapshot, everything else in the folder is left over from a save that did not end. Byte grammar:
docs/formats/snapshot.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.tables.snapshot.manifest import FORMAT_VERSION, FileEntry, SnapshotManifest, TableEntry, read_manifest
from monolith.tables.snapshot.restore import RestoreReport, restore, verify
from monolith.tables.snapshot.save import SaveHandle, SaveProgress, SaveReport, SnapshotSaveConfig, save, save_cut

__all__ = [
    "FORMAT_VERSION",
    "FileEntry",
    "RestoreReport",
    "SaveHandle",
    "SaveProgress",
    "SaveReport",
    "SnapshotManifest",
    "SnapshotSaveConfig",
    "TableEntry",
    "read_manifest",
    "restore",
    "save",
    "save_cut",
    "verify",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"Manifest": "SnapshotManifest", "SaveOptions": "SnapshotSaveConfig"})
