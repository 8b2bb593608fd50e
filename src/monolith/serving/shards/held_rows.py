"""`HeldRows`: which versions of its rows a shard has, and whose are asked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import NotFoundError

if TYPE_CHECKING:
    from monolith.serving.shards.shard_tables import ShardTables

__all__ = ["HeldRows", "VersionRows"]

_KEPT = 2
"""Versions: the newest, and the one before it, for who has not taken the newest over yet."""


class VersionRows(NamedTuple):
    """The rows of one version."""

    version: int
    tables: ShardTables


class HeldRows:
    """The rows of a shard. Any thread may call it.

    Args:
        tables: Those of the first version.
        version: Of the export that they are from.
        is_live: Whether rows are those of no export, but of a log or of who pushes them: they stand for every version.
    """

    def __init__(self, tables: ShardTables, *, version: int = 0, is_live: bool = False) -> None:
        self._lock = threading.Lock()
        self._held = [VersionRows(version, tables)]
        self._is_live = is_live

    @property
    def newest(self) -> VersionRows:
        """What is asked by who names no version."""
        return self._held[-1]

    def add(self, version: int, tables: ShardTables) -> None:
        """A newer version; the oldest is let go."""
        with self._lock:
            self._held = [*self._held, VersionRows(version, tables)][-_KEPT:]

    def of(self, version: int | None) -> VersionRows:
        """The rows that a request asks for.

        Raises:
            NotFoundError: they are not here.
        """
        held = self._held
        if version is None or self._is_live:
            return held[-1]
        for each in held:
            if each.version == version:
                return each
        known = " and ".join(str(each.version) for each in held)
        raise NotFoundError(f"no version {version}; served here: {known}")
