"""The rows that exports have for one shard, and who takes over those of a newer one."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import FailedPreconditionError, OpError
from monolith.export.export_folder import versions_in
from monolith.export.opened import open_export
from monolith.files import join
from monolith.serving.shards.shard_tables import ShardTables

if TYPE_CHECKING:
    from monolith.serving.shards.held_rows import HeldRows
    from monolith.serving.shards.shard_number import ShardNumber
    from monolith.tables.local_store import LocalStore

__all__ = ["ExportWatch", "ShardExports", "VersionStores"]

_log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Between two looks for a newer export."""


class VersionStores(NamedTuple):
    """Tables of one version."""

    version: int
    stores: dict[str, LocalStore]


class ShardExports:
    """Reads what is below ``ps_<i>`` of a path. Any thread may call it."""

    def __init__(self, path: str, number: ShardNumber) -> None:
        self._path = path
        self._place = join(path, f"ps_{number.index}")
        self.number = number

    def newest_number(self) -> int:
        """Of the newest version that is whole; -1: there is none."""
        return max(versions_in(self._place), default=-1)

    def store_names(self) -> list[str]:
        """Of the newest version.

        Raises:
            NotFoundError: there is none.
        """
        return list(open_export(self._place).manifest.stores)

    def newest(self, *, with_rows: bool = True) -> VersionStores:
        """The tables of the newest version.

        Raises:
            NotFoundError: there is none.
            FailedPreconditionError: it is for another number of shards.
            OpError: it cannot be read.
        """
        opened = open_export(self._place)
        if opened.manifest.shards != self.number.count:
            raise FailedPreconditionError(
                f"export '{self._path}': it is for {opened.manifest.shards} shards, and this is one of"
                f" {self.number.count}"
            )
        stores = opened.new_stores()
        if with_rows:
            opened.load_rows(stores)
        return VersionStores(opened.manifest.version, stores)


class ExportWatch:
    """Adds newer versions to the rows of a shard, in a thread, until it is closed."""

    def __init__(self, exports: ShardExports, rows: HeldRows) -> None:
        self._exports = exports
        self._rows = rows
        self._refused = -1
        self.problem: str | None = None
        """Why a newer version is not served; None: there is none, or it is."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monolith-shard-exports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                self._look()
            except OpError as error:
                self.problem = error.message
                _log.error("shard: a newer export is not served, the one before it is: %s", error)

    def _look(self) -> None:
        newest = self._exports.newest_number()
        if newest <= max(self._refused, self._rows.newest.version):
            return
        self._refused = newest  # until it is loaded: what cannot be used is not tried again
        version, stores = self._exports.newest()
        self._rows.add(version, ShardTables(stores, buckets=self._exports.number.buckets))
        self.problem = None
