"""Loads the rows of exports for one shard, and of newer versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import FailedPreconditionError
from monolith.export.export_folder import versions_in
from monolith.export.opened import open_export
from monolith.files import join
from monolith.serving.shards.shard_tables import ShardTables
from monolith.serving.version_watch import VersionWatch

if TYPE_CHECKING:
    from monolith.serving.shards.held_rows import HeldRows
    from monolith.serving.shards.shard_number import ShardNumber
    from monolith.tables.local.store import LocalStore

__all__ = ["ShardExports", "VersionStores", "watch_exports"]


class VersionStores(NamedTuple):
    """The tables of one version."""

    version: int
    stores: dict[str, LocalStore]


class ShardExports:
    """Exports of a shard, below ``ps_<i>`` of a path. Thread-safe."""

    def __init__(self, path: str, number: ShardNumber) -> None:
        self._path = path
        self._place = join(path, f"ps_{number.index}")
        self.number = number

    def newest_number(self) -> int:
        """Returns the number of the newest complete version; -1 if there is none."""
        return max(versions_in(self._place), default=-1)

    def store_names(self) -> list[str]:
        """Returns the names of the stores of the newest version.

        Raises:
            NotFoundError: there is no version.
        """
        return list(open_export(self._place).manifest.stores)

    def newest(self, *, with_rows: bool = True) -> VersionStores:
        """Loads the tables of the newest version.

        Raises:
            NotFoundError: there is no version.
            FailedPreconditionError: the export is for another number of shards.
            OpError: the export cannot be read.
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


def watch_exports(exports: ShardExports, rows: HeldRows) -> VersionWatch[int]:
    """Returns a watch that adds newer versions to the rows of a shard, until it is closed."""

    def newer() -> int | None:
        newest = exports.newest_number()
        return newest if newest > rows.newest.version else None

    def add(_: int) -> None:
        version, stores = exports.newest()
        if not watch.is_given_up:
            rows.add(version, ShardTables(stores, buckets=exports.number.buckets))

    watch = VersionWatch("shard", wanted=newer, take_up=add)
    watch.start()
    return watch
