"""Who holds which index of a job on Ray, and until when. Decides; the times are its caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Entry", "Registry"]

Entry = tuple[str, int, str]
"""Role, index, address."""


class Registry:
    """Addresses by role and index, each kept as long as the process that registered it is heard of.

    A process is known by a name that it chose. One that is not heard of for the length of a lease is forgotten with all
    it registered; when it speaks again it is told so, and may claim what nobody has taken since. Not thread-safe.
    """

    def __init__(self, lease_seconds: float) -> None:
        if not lease_seconds > 0:
            raise ValueError(f"ray registry: lease_seconds must be > 0, got {lease_seconds}")
        self._lease = lease_seconds
        self._heard: dict[str, float] = {}
        self._held: dict[tuple[str, int], tuple[str, str]] = {}

    def register(self, client: str, entry: Entry, now: float) -> None:
        """Make an address the holder of an index, in place of whoever held it."""
        self._heard[client] = now
        role, index, addr = entry
        self._held[role, index] = (addr, client)

    def deregister(self, entry: Entry) -> None:
        """Give up an index; nothing happens when another address holds it."""
        role, index, addr = entry
        if self._held.get((role, index), ("", ""))[0] == addr:
            del self._held[role, index]

    def beat(self, client: str, now: float) -> bool:
        """Hear of a process; False where it is not known (any more)."""
        self._forget(now)
        if client in self._heard:
            self._heard[client] = now
        return client in self._heard

    def claim(self, client: str, entries: Iterable[Entry], now: float) -> list[Entry]:
        """Give a process what it had registered, and return those that another one has taken since."""
        self._forget(now)
        self._heard[client] = now
        taken: list[Entry] = []
        for role, index, addr in entries:
            if self._held.setdefault((role, index), (addr, client)) != (addr, client):
                taken.append((role, index, addr))
        return taken

    def leave(self, client: str) -> None:
        """Forget a process and all it registered."""
        self._heard.pop(client, None)
        self._held = {place: held for place, held in self._held.items() if held[1] != client}

    def addresses(self, now: float) -> dict[str, dict[int, str]]:
        """All of them: role, then index, in order."""
        self._forget(now)
        found: dict[str, dict[int, str]] = {}
        for (role, index), (addr, _) in sorted(self._held.items()):
            found.setdefault(role, {})[index] = addr
        return found

    def _forget(self, now: float) -> None:
        for client in [client for client, heard in self._heard.items() if now - heard > self._lease]:
            self.leave(client)
