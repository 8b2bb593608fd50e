"""Leases on the indices of a job on Ray. Has no clock: the caller passes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Entry", "Registry"]

Entry = tuple[str, int, str]
"""Role, index, address."""


class Registry:
    """Addresses by role and index, each kept while the process that registered it sends heartbeats.

    A process identifies itself by a name that it chose. A process without a heartbeat for the length of a lease is
    removed with all of its entries; its next heartbeat returns False, and it may claim the entries that no other
    process has taken since. Not thread-safe.
    """

    def __init__(self, lease_seconds: float) -> None:
        if not lease_seconds > 0:
            raise ValueError(f"ray registry: lease_seconds must be > 0, got {lease_seconds}")
        self._lease = lease_seconds
        self._heard: dict[str, float] = {}
        self._held: dict[tuple[str, int], tuple[str, str]] = {}

    def register(self, client: str, entry: Entry, now: float) -> None:
        """Makes an address the holder of an index, replacing any other holder."""
        self._heard[client] = now
        role, index, addr = entry
        self._held[role, index] = (addr, client)

    def deregister(self, entry: Entry) -> None:
        """Releases an index. Does nothing when another address holds it."""
        role, index, addr = entry
        if self._held.get((role, index), ("", ""))[0] == addr:
            del self._held[role, index]

    def beat(self, client: str, now: float) -> bool:
        """Records a heartbeat; returns False if the process is not registered (any more)."""
        self._forget(now)
        if client in self._heard:
            self._heard[client] = now
        return client in self._heard

    def claim(self, client: str, entries: Iterable[Entry], now: float) -> list[Entry]:
        """Restores the entries of a process, and returns those that another process has taken since."""
        self._forget(now)
        self._heard[client] = now
        taken: list[Entry] = []
        for role, index, addr in entries:
            if self._held.setdefault((role, index), (addr, client)) != (addr, client):
                taken.append((role, index, addr))
        return taken

    def leave(self, client: str) -> None:
        """Removes a process and all of its entries."""
        self._heard.pop(client, None)
        self._held = {place: held for place, held in self._held.items() if held[1] != client}

    def addresses(self, now: float) -> dict[str, dict[int, str]]:
        """Returns all addresses: role, then index, in order."""
        self._forget(now)
        found: dict[str, dict[int, str]] = {}
        for (role, index), (addr, _) in sorted(self._held.items()):
            found.setdefault(role, {})[index] = addr
        return found

    def _forget(self, now: float) -> None:
        for client in [client for client, heard in self._heard.items() if now - heard > self._lease]:
            self.leave(client)
