"""The folder of one version of an export: files with checksums, and the manifest that makes them one."""

from __future__ import annotations

import fsspec

from monolith.checkpoint.tensor_file import sum_of
from monolith.errors import DataLossError, NotFoundError
from monolith.export.manifest import MANIFEST, Manifest
from monolith.files import basename, join, local_path, named_errors, read_regular_file, remove_folder

__all__ = ["ENTRY", "ExportFolder", "find_export", "versions_in"]

ENTRY = "entry"
"""Of an export whose rows others have: the folder of its versions, beside theirs."""
MANIFEST_BYTES = 64 << 20
"""Of the largest manifest that is read."""


class ExportFolder:
    """Reads and writes files of a folder, local or any fsspec path."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") if len(path) > 1 else path
        self._files, self._place = fsspec.core.url_to_fs(self.path)
        self._local = local_path(self.path)

    def write(self, name: str, data: bytes) -> dict[str, int]:
        """Writes a file; its size and checksum, as a manifest has them."""
        place = f"{self._place}/{name}"
        with named_errors(join(self.path, name), "written"):
            self._files.makedirs(self._place, exist_ok=True)
            self._files.pipe_file(place, data)
        written = sum_of(data)
        return {"bytes": written.bytes, "crc32c": written.crc32c}

    def publish(self, manifest: Manifest) -> None:
        """Writes the manifest, whole or not at all: from then on there is this version."""
        temporary = f"{MANIFEST}.tmp"
        with named_errors(join(self.path, MANIFEST), "written"):
            self._files.makedirs(self._place, exist_ok=True)
            self._files.pipe_file(f"{self._place}/{temporary}", manifest.to_bytes())
            self._files.mv(f"{self._place}/{temporary}", f"{self._place}/{MANIFEST}")

    def read(self, name: str, manifest: Manifest) -> bytes:
        """A file that the manifest names.

        Raises:
            NotFoundError: it is not there.
            DataLossError: it is not what was written.
        """
        expected = manifest.files.get(name)
        place = join(self.path, name)
        if expected is None:
            raise NotFoundError(f"'{place}': the manifest names no such file, but {', '.join(sorted(manifest.files))}")
        data = self._read(name, expected["bytes"])
        found = sum_of(data)
        if (found.bytes, found.crc32c) != (expected["bytes"], expected.get("crc32c")):
            raise DataLossError(
                f"file '{place}': {found.bytes} bytes with checksum {found.crc32c:#x}, {expected['bytes']} bytes with"
                f" {expected.get('crc32c', 0):#x} were written"
            )
        return data

    def manifest(self) -> Manifest:
        """The manifest.

        Raises:
            NotFoundError: there is none: it is no export, or one that was not written to its end.
        """
        return Manifest.from_bytes(self.read_manifest(), origin=f"file '{join(self.path, MANIFEST)}'")

    def read_manifest(self) -> bytes:
        """The bytes of the manifest."""
        return self._read(MANIFEST, MANIFEST_BYTES)

    def release(self) -> None:
        """Forgets what was read, where anything is kept."""

    @property
    def is_whole(self) -> bool:
        """Whether there is a manifest."""
        with named_errors(self.path, "read"):
            return bool(self._files.exists(f"{self._place}/{MANIFEST}"))

    def remove(self) -> None:
        """Removes it, the manifest first."""
        with named_errors(self.path, "removed"):
            if self._files.exists(f"{self._place}/{MANIFEST}"):
                self._files.rm_file(f"{self._place}/{MANIFEST}")
            remove_folder(self.path)

    def _read(self, name: str, most_bytes: int) -> bytes:
        with named_errors(join(self.path, name), "read"):
            if self._local is not None:
                return read_regular_file(str(self._local / name), most_bytes=most_bytes)
            data: bytes = self._files.cat_file(f"{self._place}/{name}", end=most_bytes + 1)
        return data


def versions_in(path: str) -> list[int]:
    """The versions below a path that are whole, ascending."""
    with named_errors(path, "read"):
        files, place = fsspec.core.url_to_fs(path)
        try:
            names = [basename(str(each).rstrip("/")) for each in files.ls(place, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
    numbers = sorted(int(name) for name in names if name.isdigit() and str(int(name)) == name)
    return [number for number in numbers if ExportFolder(join(path, str(number))).is_whole]


def find_export(path: str) -> ExportFolder:
    """The folder that is meant: an export, or the newest version below a path or its ``entry``.

    Raises:
        NotFoundError: there is none.
    """
    folder = ExportFolder(path)
    if folder.is_whole:
        return folder
    for place in (path, join(path, ENTRY)):
        versions = versions_in(place)
        if versions:
            return ExportFolder(join(place, str(versions[-1])))
    raise NotFoundError(f"'{path}': neither an export (no {MANIFEST}) nor a folder with versions of one")
