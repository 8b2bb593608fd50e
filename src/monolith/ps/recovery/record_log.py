"""The recovery record as the process that writes it knows it: what is in which file, and which are needed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from monolith.ps.recovery.chain import covered_files
from monolith.ps.recovery.entries import RecordMeta
from monolith.ps.recovery.record_file import RecordWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from monolith.ps.recovery.record_folder import RecordFolder

__all__ = ["Followed", "PriorRecord", "RecordLog"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Followed:
    """How far the rows of a store were written."""

    lineage: int
    written: int
    """Everything up to this epoch is in the record, or in a snapshot that it names."""
    since: int
    """The epoch to ask from: later than `written` where nothing has changed between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorRecord:
    """The files of a record that goes on."""

    metas: Mapping[int, RecordMeta]
    """Of those that can be used."""
    sizes: Mapping[int, int]
    last: RecordMeta
    """What the last one said, be its rows whole or not."""
    followed: Mapping[str, Followed]
    dense_version: int
    parts: Mapping[str, bytes]


class RecordLog:
    """Appends files, and removes those that nobody needs. Whoever owns it sees that one call is inside at a time.

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
        """What the last file says."""

    def go_on(self, prior: PriorRecord) -> None:
        """Some files are there already."""
        self._metas, self._sizes = dict(prior.metas), dict(prior.sizes)
        self.last = prior.last

    @property
    def is_empty(self) -> bool:
        """Whether no file counts."""
        return not self._metas

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(self._sizes.values())

    def append(
        self, fill: Callable[[RecordWriter, int], RecordMeta | None], *, rate: float | None
    ) -> RecordMeta | None:
        """Writes one more file.

        Args:
            fill: Gets the file and its number, and tells what is in it; None: nothing that is worth a file.
            rate: Highest rate in bytes per second.

        Raises:
            OpError, OSError: it could not be written; nothing is left of it.
        """
        number = self._number + 1
        writer = RecordWriter(self._folder.path_of(number, self._writer), rate_bytes_per_second=rate)
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
        """Removes what the snapshots of the newest checkpoint, or later files, hold as well."""
        numbers = covered_files([self._metas[number] for number in sorted(self._metas)], snapshots)
        for each in numbers:
            del self._metas[each], self._sizes[each]
        self._folder.remove_others([self._folder.path_of(each, meta.writer) for each, meta in self._metas.items()])

    def remove_all(self) -> None:
        """What is there is wrong, and nothing can be written."""
        self._folder.remove_others(())
        self._metas.clear()
        self._sizes.clear()
        self.last = replace(self.last, stores={}, dense=None, parts={})

    def is_still_ours(self) -> bool:
        """Whether no other process has taken the place of this one."""
        if not self._is_taken_over and not self._folder.is_claimed_by(self._writer):
            self._is_taken_over = True
            _log.warning(
                "%s: another process has taken the place of this one, which writes nothing from now on; end it",
                self._folder.title,
            )
        return not self._is_taken_over
