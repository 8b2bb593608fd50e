"""The folder of one version of an export: files with checksums, and the manifest that commits them."""

from __future__ import annotations

import heapq
import json
import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from monolith.checkpoint import sum_of
from monolith.errors import DataLossError, NotFoundError
from monolith.export.manifest import MANIFEST, ExportManifest
from monolith.files import basename, join, local_path, named_errors, open_storage, remove_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

ENTRY = "entry"
"""Folder with the versions of the entry of a sharded export, next to those of the shards."""
MOST_VERSIONS = 10_000
"""Maximum number of version folders that are listed."""
MANIFEST_BYTES = 64 << 20
"""Maximum size of a manifest."""
_SUMMED_BYTES = 1 << 30
"""Maximum size of the manifest of a snapshot."""


class ExportFolder:
    """Folder of one version of an export, local or any fsspec path."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") if len(path) > 1 else path
        self._storage = open_storage(self.path)

    def write(self, name: str, data: bytes) -> dict[str, int]:
        """Writes a file; returns its size and checksum for the manifest."""
        self._storage.make()
        self._storage.write(name, [data])
        return _sum(data)

    def publish(self, manifest: ExportManifest) -> None:
        """Writes the manifest atomically, which commits the version: its files survive a power loss as it does."""
        self._storage.make()
        self._storage.sync()
        self._storage.replace(MANIFEST, manifest.to_bytes())

    def read(self, name: str, manifest: ExportManifest) -> bytes:
        """Reads a file that the manifest names.

        Raises:
            NotFoundError: the file does not exist.
            DataLossError: the size or checksum does not match.
        """
        expected = manifest.files.get(name)
        if expected is None:
            place = join(self.path, name)
            raise NotFoundError(f"'{place}': the manifest names no such file, but {', '.join(sorted(manifest.files))}")
        return self.read_summed(name, expected)

    def read_summed(self, name: str, expected: Mapping[str, int]) -> bytes:
        """Reads a file of this size and checksum.

        Raises:
            NotFoundError: the file does not exist.
            DataLossError: the size or checksum does not match.
        """
        data = self._read(name, expected["bytes"])
        actual = _sum(data)
        if actual != expected:
            raise DataLossError(
                f"file '{join(self.path, name)}': {actual['bytes']} bytes with checksum {actual['crc32c']:#x},"
                f" {expected['bytes']} bytes with {expected['crc32c']:#x} were written"
            )
        return data

    def sum_of(self, name: str) -> dict[str, int]:
        """Returns the size and checksum of a file."""
        return _sum(self._read(name, _SUMMED_BYTES))

    def manifest(self) -> ExportManifest:
        """Reads the manifest.

        Raises:
            NotFoundError: there is none: the folder is not an export, or its write was not completed.
        """
        return ExportManifest.from_bytes(self.read_manifest(), origin=f"file '{join(self.path, MANIFEST)}'")

    def read_manifest(self) -> bytes:
        """Reads the bytes of the manifest."""
        return self._read(MANIFEST, MANIFEST_BYTES)

    def release(self) -> None:
        """Releases files held in memory, if any."""

    @property
    def is_whole(self) -> bool:
        """Whether the version is committed, that is, has a manifest."""
        return self._storage.exists(MANIFEST)

    def remove(self) -> None:
        """Removes the version, the manifest first."""
        self._storage.remove(MANIFEST)
        if self._storage.is_there():
            self._storage.sync()  # a power loss must not restore the manifest alone: it would name missing files
            self._storage.remove("")

    def _read(self, name: str, most_bytes: int) -> bytes:
        return self._storage.read(name, most_bytes=most_bytes)


def _sum(data: bytes) -> dict[str, int]:
    summed = sum_of(data)
    return {"bytes": summed.bytes, "crc32c": summed.crc32c}


def versions_in(path: str) -> list[int]:
    """Returns the complete versions below a path, ascending; at most the `MOST_VERSIONS` highest numbers."""
    with named_errors(path, "read"):
        local = local_path(path)
        try:
            numbers = _highest(open_storage(path).names()) if local is None else _local_numbers(local)
        except (FileNotFoundError, NotADirectoryError):
            return []
        if local is not None:
            return [number for number in numbers if (local / str(number) / MANIFEST).exists()]
    return [number for number in numbers if ExportFolder(join(path, str(number))).is_whole]


def _local_numbers(path: Path) -> list[int]:
    """Lists a folder, cached until it changes: servers poll every second, and it may hold any number of other files."""
    changed = path.stat().st_mtime_ns
    known = _listed.get(str(path))
    if known is None or known.changed != changed:
        known = _Listed(changed, time.monotonic())
    if known.numbers is not None:
        return known.numbers
    is_settled = time.monotonic() - known.since > _SETTLED_SECONDS  # else a later change may have the same timestamp
    with os.scandir(path) as entries:
        numbers = _highest(entry.name for entry in entries)
    if len(_listed) >= _MOST_LISTED:
        _listed.clear()
    _listed[str(path)] = known._replace(numbers=numbers) if is_settled else known
    return numbers


def _highest(names: Iterable[str]) -> list[int]:
    numerals = (name for name in names if name.isdecimal() and len(name) <= _LONGEST_NUMBER)
    return sorted(heapq.nlargest(MOST_VERSIONS, (number for name in numerals if str(number := int(name)) == name)))


class _Listed(NamedTuple):
    """Cached listing of a folder."""

    changed: int
    """Modification time of the folder, by the clock of its file system."""
    since: float
    """When that time was first seen, by the clock of this process."""
    numbers: list[int] | None = None
    """Version numbers; None: to be listed again."""


_listed: dict[str, _Listed] = {}
_MOST_LISTED = 100
_SETTLED_SECONDS = 5.0
_LONGEST_NUMBER = 18


def find_export(path: str) -> ExportFolder:
    """Finds an export: the path itself, or the newest version below it or its ``entry``.

    Raises:
        NotFoundError: there is no export.
    """
    folder = ExportFolder(path)
    if folder.is_whole:
        return folder
    for place in (path, join(path, ENTRY)):
        if versions := versions_in(place):
            return ExportFolder(join(place, str(versions[-1])))
    raise NotFoundError(f"'{path}': neither an export (no {MANIFEST}) nor a folder with versions of one")


class HeldFolder(ExportFolder):
    """Folder whose files are in memory; rows stay in storage.

    Args:
        path: Path of the export.
        files: Name -> contents of the manifest and of every file that it names.
    """

    def __init__(self, path: str, files: Mapping[str, bytes]) -> None:
        super().__init__(path)
        self.files = dict(files)

    @classmethod
    def of(cls, folder: ExportFolder) -> HeldFolder:
        """Reads the files of a folder, once.

        Raises:
            NotFoundError, DataLossError: a file is missing or damaged.
        """
        text = folder.read_manifest()
        manifest = ExportManifest.from_bytes(text, origin=f"file '{join(folder.path, MANIFEST)}'")
        return cls(folder.path, {MANIFEST: text, **{name: folder.read(name, manifest) for name in manifest.files}})

    def release(self) -> None:
        """Releases all files but the manifest."""
        self.files = {MANIFEST: self.files[MANIFEST]}

    def read_manifest(self) -> bytes:
        """Returns the bytes of the manifest."""
        return self.files[MANIFEST]

    def _read(self, name: str, most_bytes: int) -> bytes:  # noqa: ARG002 - its size is known
        data = self.files.get(name)
        if data is None:
            raise NotFoundError(f"'{join(self.path, name)}': it was read and let go")
        return data


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
