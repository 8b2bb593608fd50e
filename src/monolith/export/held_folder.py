"""The small files of an export in memory, so that the loaded files are those that were tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import NotFoundError
from monolith.export.export_folder import ExportFolder
from monolith.export.manifest import MANIFEST, ExportManifest
from monolith.files import join

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HeldFolder"]


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
        found = self.files.get(name)
        if found is None:
            raise NotFoundError(f"'{join(self.path, name)}': it was read and let go")
        return found
