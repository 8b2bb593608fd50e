"""The small files of an export in memory: what was tried is what is loaded, whatever becomes of the files meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import NotFoundError
from monolith.export.export_folder import ExportFolder
from monolith.export.manifest import MANIFEST, Manifest
from monolith.files import join

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HeldFolder"]


class HeldFolder(ExportFolder):
    """Reads from memory; rows stay where they are.

    Args:
        path: Of the export.
        files: Name -> bytes: the manifest, and every file that it names.
    """

    def __init__(self, path: str, files: Mapping[str, bytes]) -> None:
        super().__init__(path)
        self.files = dict(files)

    @classmethod
    def of(cls, folder: ExportFolder) -> HeldFolder:
        """Reads the files of a folder, once.

        Raises:
            NotFoundError, DataLossError: one is missing, or is not what was written.
        """
        text = folder.read_manifest()
        manifest = Manifest.from_bytes(text, origin=f"file '{join(folder.path, MANIFEST)}'")
        return cls(folder.path, {MANIFEST: text, **{name: folder.read(name, manifest) for name in manifest.files}})

    def release(self) -> None:
        """Forgets what graphs and weights were made of."""
        self.files = {MANIFEST: self.files[MANIFEST]}

    def read_manifest(self) -> bytes:
        """The bytes of the manifest."""
        return self.files[MANIFEST]

    def _read(self, name: str, most_bytes: int) -> bytes:  # noqa: ARG002 - its size is known
        found = self.files.get(name)
        if found is None:
            raise NotFoundError(f"'{join(self.path, name)}': it was read and let go")
        return found
