"""When to look at ZooKeeper again, and when to announce ourselves again. Decides; touches no network."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chores:
    """What is to be done now."""

    announce: tuple[str, ...] = ()
    """Paths to register again."""
    refresh: bool = False
    """Whether the map of the cluster may be out of date."""

    def __bool__(self) -> bool:
        return self.refresh or bool(self.announce)


class Upkeep:
    """The chores of a process that has registered paths and mirrors those of others.

    Each path is announced again a period after it was announced last, and at once when a session that was lost has come
    back: the server has dropped what the old session had registered. A suspended connection alone drops nothing, but
    watches may have been missed, so the mirror is refreshed. Nothing is due while there is no connection. Not
    thread-safe: the owner holds its lock.
    """

    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._due: dict[str, float] = {}
        self._connected = True
        self._lost = False
        self._refresh = False

    def registered(self, path: str, now: float) -> None:
        """A path was announced."""
        self._due[path] = now + self._period

    def removed(self, path: str) -> None:
        """A path was given up."""
        self._due.pop(path, None)

    def failed(self, path: str, now: float, retry_seconds: float) -> None:
        """A path could not be announced; it is tried again, unless it was given up meanwhile."""
        if path in self._due:
            self._due[path] = now + retry_seconds

    def changed(self) -> None:
        """Somebody registered or left."""
        self._refresh = True

    def suspended(self) -> None:
        """The connection broke; the session may live on."""
        self._connected = False

    def lost(self) -> None:
        """The session is gone."""
        self._connected = False
        self._lost = True

    def connected(self) -> None:
        """The connection is back, with the old session or a new one."""
        self._connected = True
        self._refresh = True
        if self._lost:
            self._lost = False
            self._due = dict.fromkeys(self._due, -math.inf)

    def take(self, now: float) -> Chores:
        """What is due now. The mirror counts as refreshed; paths stay due until they were announced or have failed."""
        if not self._connected:
            return Chores()
        chores = Chores(tuple(path for path, due in self._due.items() if due <= now), self._refresh)
        self._refresh = False
        return chores

    def seconds_until_due(self, now: float) -> float | None:
        """How long nothing will be due unless something happens; None is for ever."""
        if not self._connected or not (self._due or self._refresh):
            return None
        return 0.0 if self._refresh else max(0.0, min(self._due.values()) - now)
