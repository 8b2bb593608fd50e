"""Records the exports of a run: `ExportSaverListenerState`, a text proto in each folder with versions."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import NotFoundError
from monolith.export.export_folder import ENTRY, ExportFolder, versions_in
from monolith.files import basename, join, open_storage, remove_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

STATE = "ExportSaverListenerState"
_ENTRY = re.compile(r'entries\s*\{\s*export_dir:\s*("(?:[^"\\]|\\.)*")\s*global_step:\s*(\d+)\s*\}')
_SHARD = re.compile(r"ps_\d+")


class _Recorded(NamedTuple):
    """An export of a run."""

    version: int
    step: int


class ExportRecords:
    """The exports of one run, below one path. Requires a single writer.

    Args:
        path: The folder of all versions: itself, or ``entry`` and ``ps_<i>`` inside.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, version: int, step: int) -> None:
        """Records an export in each of its folders."""
        for folder in self._folders():
            if ExportFolder(join(folder, str(version))).is_whole:
                others = [record for record in _read(folder) if record.version != version]
                _write(folder, [*others, _Recorded(version, step)])

    def retain(self, steps: Collection[int]) -> list[int]:
        """Removes exports of other steps, and exports of weights that are left without rows; returns their versions."""
        removed: set[int] = set()
        folders = self._folders()
        for folder in (self._path, join(self._path, ENTRY)):
            if folder in folders:
                removed |= _to_remove(folder, _read(folder), steps)
        if not removed:
            return []
        for folder in folders:
            noted = _read(folder)
            gone = [record.version for record in noted if record.version in removed]
            if gone:
                _write(folder, [record for record in noted if record.version not in removed])
            for version in gone:
                ExportFolder(join(folder, str(version))).remove()
        for version in removed:
            remove_folder(join(self._path, "rows", str(version)))
        return sorted(removed)

    def has_rows(self) -> bool:
        """Returns whether a version has rows, so that a version with only weights can be served."""
        return any(
            ExportFolder(join(folder, str(version))).manifest().rows is not None
            for folder in (self._path, join(self._path, ENTRY))
            for version in versions_in(folder)
        )

    def _folders(self) -> list[str]:
        """Returns the folders that may have versions, in the order in which readers search them."""
        storage = open_storage(self._path)
        if not storage.is_there():
            return []
        parts = [name for name in storage.names() if name == ENTRY or _SHARD.fullmatch(name)]
        return [self._path, *(join(self._path, name) for name in parts)]


def _to_remove(folder: str, noted: Sequence[_Recorded], steps: Collection[int]) -> set[int]:
    removed = {record.version for record in noted if record.step not in steps}
    kept = sorted({record.version for record in noted} - removed)
    has_rows = False
    for version in kept:
        place = ExportFolder(join(folder, str(version)))
        if not place.is_whole:
            removed.add(version)
            continue
        has_rows = has_rows or place.manifest().rows is not None
        if not has_rows:  # earlier versions are removed
            removed.add(version)
    return removed


def _read(folder: str) -> list[_Recorded]:
    try:
        text = open_storage(folder).read(STATE).decode()
    except NotFoundError:
        return []
    entries = [(basename(str(json.loads(match[1]))), int(match[2])) for match in _ENTRY.finditer(text)]
    return [_Recorded(int(name), step) for name, step in entries if name.isdigit()]


def _write(folder: str, entries: Sequence[_Recorded]) -> None:
    text = "".join(
        f"entries {{\n  export_dir: {json.dumps(join(folder, str(record.version)))}\n  global_step: {record.step}\n}}\n"
        for record in entries
    )
    storage = open_storage(folder)
    storage.remove_abandoned()
    storage.remove(f"{STATE}.tmp")  # of an older version that was killed
    storage.replace(STATE, text.encode())
