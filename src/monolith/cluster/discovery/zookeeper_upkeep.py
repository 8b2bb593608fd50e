"""Schedules refreshes of the ZooKeeper mirror and repeated registrations. Does no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chores:
    """Work that is due now."""

    announce: tuple[str, ...] = ()
    """Paths to register again."""
    refresh: bool = False
    """Whether the map of the cluster may be out of date."""

    def __bool__(self) -> bool:
        return self.refresh or bool(self.announce)


class Upkeep:
    """The pending work of a process that has registered paths and mirrors those of others.

    Each path is registered again one period after its last registration, and immediately when a lost session is
    re-established: the server has dropped what the old session had registered. A suspended connection alone drops
    nothing, but watches may have been missed, so the mirror is refreshed. Nothing is due while there is no connection.
    Not thread-safe: the owner holds its lock.
    """

    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._due: dict[str, float] = {}
        self._connected = True
        self._lost = False
        self._refresh = False

    def registered(self, path: str, now: float) -> None:
        """Records that a path was registered."""
        self._due[path] = now + self._period

    def removed(self, path: str) -> None:
        """Removes a path."""
        self._due.pop(path, None)

    def failed(self, path: str, now: float, retry_seconds: float) -> None:
        """Schedules a retry for a path that could not be registered, unless it was removed meanwhile."""
        if path in self._due:
            self._due[path] = now + retry_seconds

    def changed(self) -> None:
        """Records that another process registered or left."""
        self._refresh = True

    def suspended(self) -> None:
        """Records that the connection broke; the session may still be valid."""
        self._connected = False

    def lost(self) -> None:
        """Records that the session has expired."""
        self._connected = False
        self._lost = True

    def connected(self) -> None:
        """Records that the connection is restored, with the old session or a new one."""
        self._connected = True
        self._refresh = True
        if self._lost:
            self._lost = False
            self._due = dict.fromkeys(self._due, -math.inf)

    def take(self, now: float) -> Chores:
        """Returns the work that is due. The mirror counts as refreshed; paths stay due until registered or failed."""
        if not self._connected:
            return Chores()
        chores = Chores(tuple(path for path, due in self._due.items() if due <= now), self._refresh)
        self._refresh = False
        return chores

    def seconds_until_due(self, now: float) -> float | None:
        """Returns the seconds until something is due if no event occurs; None: never."""
        if not self._connected or not (self._due or self._refresh):
            return None
        return 0.0 if self._refresh else max(0.0, min(self._due.values()) - now)
