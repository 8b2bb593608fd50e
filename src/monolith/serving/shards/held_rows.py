"""`HeldRows`: the versions of the rows of a shard."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import NotFoundError

if TYPE_CHECKING:
    from monolith.serving.shards.shard_tables import ShardTables

__all__ = ["HeldRows", "VersionRows"]

_KEPT = 2
"""Number of versions to keep: the newest, and the previous one for entries that have not loaded the newest yet."""


class VersionRows(NamedTuple):
    """The rows of one version."""

    version: int
    tables: ShardTables


class HeldRows:
    """The rows of a shard, by version. Thread-safe.

    Args:
        tables: Tables of the first version.
        version: Version of their export.
        is_live: Whether the rows come from a log or from pushes instead of an export; they serve every version.
    """

    def __init__(self, tables: ShardTables, *, version: int = 0, is_live: bool = False) -> None:
        self._lock = threading.Lock()
        self._held = [VersionRows(version, tables)]
        self._is_live = is_live

    @property
    def newest(self) -> VersionRows:
        """Rows for requests without a version."""
        return self._held[-1]

    def add(self, version: int, tables: ShardTables) -> None:
        """Adds a newer version; the oldest is dropped."""
        with self._lock:
            self._held = [*self._held, VersionRows(version, tables)][-_KEPT:]

    def of(self, version: int | None) -> VersionRows:
        """Returns the rows for a requested version.

        Raises:
            NotFoundError: the version is not loaded.
        """
        held = self._held
        if version is None or self._is_live:
            return held[-1]
        for each in held:
            if each.version == version:
                return each
        known = " and ".join(str(each.version) for each in held)
        raise NotFoundError(f"no version {version}; served here: {known}")
