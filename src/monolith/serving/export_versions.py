"""Finds the versions of an export at a path."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import NotFoundError
from monolith.export import ExportFolder, HeldFolder, OpenedExport, find_export, try_export, versions_in
from monolith.files import dirname, join

if TYPE_CHECKING:
    from collections.abc import Callable

_SHOWN = 10
"""Maximum number of versions listed in a message."""


class FoundExport(NamedTuple):
    """An export, and the export that has its rows."""

    export: OpenedExport
    with_rows: OpenedExport
    """The export itself or, if it has only weights, the newest earlier one with rows."""


class ExportVersions:
    """The versions of an export. Thread-safe."""

    def __init__(self, path: str) -> None:
        folder = find_export(path)
        self.is_fixed = folder.path == ExportFolder(path).path
        """Whether the path is a single version, so that no other will appear."""
        self._place = dirname(folder.path)
        self._fixed = folder

    def numbers(self) -> list[int]:
        """Returns the numbers of the complete versions, ascending."""
        return [self._fixed.manifest().version] if self.is_fixed else versions_in(self._place)

    def newest_number(self) -> int:
        """Returns the number of the newest complete version; -1 if there is none."""
        numbers = versions_in(self._place)
        return numbers[-1] if numbers else -1

    def path_of(self, number: int) -> str:
        """Returns the path of a version."""
        if number not in (known := self.numbers()):
            newest = ", ".join(map(str, known[-_SHOWN:])) or "none"
            raise NotFoundError(f"'{self._place}': there is no version {number}; the newest are: {newest}")
        return self._fixed.path if self.is_fixed else self._folder(number).path

    def newest(self, *, trial: bool = False, is_stopped: Callable[[], bool] = lambda: False) -> FoundExport:
        """Opens the newest version.

        Args:
            trial: Whether a child process loads and runs its graphs first. The tried files stay in memory until the
                folder of the export is released.
            is_stopped: Whether the trial was cancelled.

        Raises:
            NotFoundError: there is none, or it has only weights and no earlier version has rows.
            OpError: the export cannot be read.
        """
        folder = self._fixed if self.is_fixed else self._folder(self.newest_number())
        if trial:
            folder = HeldFolder.of(folder)
            try_export(folder, is_stopped=is_stopped)
        export = OpenedExport(folder)
        if export.manifest.kind == "ps":
            raise NotFoundError(f"export '{export.folder.path}': it has rows of one shard and no model; open the entry")
        if export.manifest.rows is not None:
            return FoundExport(export, export)
        return FoundExport(export, self._rows_before(export))

    def _rows_before(self, export: OpenedExport) -> OpenedExport:
        for number in reversed(versions_in(self._place)):
            if number < export.manifest.version:
                before = OpenedExport(self._folder(number))
                if before.manifest.rows is not None:
                    return before
        raise NotFoundError(
            f"export '{export.folder.path}': it has weights alone, and no version before it has rows; export the model"
            " once with rows"
        )

    def _folder(self, number: int) -> ExportFolder:
        return ExportFolder(join(self._place, str(number)))
