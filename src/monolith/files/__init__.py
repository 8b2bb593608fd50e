"""Paths, storage and copies, on this machine and on every file system that fsspec supports, and the form of manifests.

Read `storage` first: it writes and locks the files of all other packages.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
