"""Durable copies of stores: a folder of bucket files with a manifest that is written last.

May import: `monolith.tables.schema`, `monolith.tables.history`, `errors` and the C++ core. Read `manifest.py` first:
what it lists is the snapshot, everything else in the folder is left over from a save that did not end. Byte grammar:
docs/formats/snapshot.md.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(
    __name__, {"Manifest": "SnapshotManifest", "SaveOptions": "SnapshotSaveConfig"}
)
