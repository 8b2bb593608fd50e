"""The recovery record in the process that writes it: the contents of each file, and which files are needed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from monolith.ps.recovery.chain import covered_files
from monolith.ps.recovery.entries import RecordMeta
from monolith.ps.recovery.record_file import RecoveryFileWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from monolith.ps.recovery.record_folder import RecordFolder

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Followed:
    """How far the rows of a store were written."""

    lineage: int
    written: int
    """Everything up to this epoch is in the record, or in a snapshot that the record names."""
    since: int
    """Epoch to copy changes from: later than `written` if nothing changed in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorRecord:
    """The files of a record to be continued."""

    metas: Mapping[int, RecordMeta]
    """Metadata of usable files, by number."""
    sizes: Mapping[int, int]
    last: RecordMeta
    """Metadata of the last file, even if its rows are damaged."""
    followed: Mapping[str, Followed]
    dense_version: int
    parts: Mapping[str, bytes]


class RecordLog:
    """Appends files, and removes those that are no longer needed. Not thread-safe: the owner serializes calls.

    Args:
        folder: The files; the process has claimed them.
        writer: Number of the process.
    """

    def __init__(self, folder: RecordFolder, writer: int) -> None:
        self._folder = folder
        self._writer = writer
        self._number = folder.highest_number()
        self._metas: dict[int, RecordMeta] = {}
        self._sizes: dict[int, int] = {}
        self._is_taken_over = False
        self.last = RecordMeta(
            index=folder.index, num_ps=folder.num_ps, number=0, writer=writer, initialized=frozenset()
        )
        """Metadata of the last file."""

    def go_on(self, prior: PriorRecord) -> None:
        """Continues a record with existing files."""
        self._metas, self._sizes = dict(prior.metas), dict(prior.sizes)
        self.last = prior.last

    @property
    def is_empty(self) -> bool:
        """Whether there is no valid file."""
        return not self._metas

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(self._sizes.values())

    def append(
        self, fill: Callable[[RecoveryFileWriter, int], RecordMeta | None], *, rate: float | None
    ) -> RecordMeta | None:
        """Writes one more file.

        Args:
            fill: Fills the file, given the file and its number, and returns its metadata; None: nothing worth a file.
            rate: Maximum rate in bytes per second.

        Raises:
            OpError, OSError: the file could not be written, and was removed.
        """
        number = self._number + 1
        writer = RecoveryFileWriter(self._folder.path_of(number, self._writer), rate_bytes_per_second=rate)
        try:
            meta = fill(writer, number)
            if meta is None:
                writer.discard()
                return None
            meta = replace(meta, number=number, writer=self._writer)
            size = writer.finish(meta)
        except BaseException:
            writer.discard()
            raise
        self._folder.sync()
        self._number, self.last = number, meta
        self._metas[number], self._sizes[number] = meta, size
        return meta

    def remove_covered(self, snapshots: Collection[int]) -> None:
        """Removes files whose contents are in the snapshots of the newest checkpoint or in later files."""
        numbers = covered_files([self._metas[number] for number in sorted(self._metas)], snapshots)
        for number in numbers:
            del self._metas[number], self._sizes[number]
        self._folder.remove_others([self._folder.path_of(number, meta.writer) for number, meta in self._metas.items()])

    def remove_all(self) -> None:
        """Removes all files, because they are wrong and cannot be corrected by a new one."""
        self._folder.remove_others(())
        self._metas.clear()
        self._sizes.clear()
        self.last = replace(self.last, stores={}, dense=None, parts={})

    def is_still_ours(self) -> bool:
        """Returns whether no other process has claimed the record."""
        if not self._is_taken_over and not self._folder.is_claimed_by(self._writer):
            self._is_taken_over = True
            _log.warning(
                "%s: another process has taken the place of this one, which writes nothing from now on; end it",
                self._folder.title,
            )
        return not self._is_taken_over
