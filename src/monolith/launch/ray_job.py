"""The actor of a job on Ray that its launcher and all its roles call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith.cluster.discovery.ray_actor import LEASE_SECONDS, RegistryActor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JobActor", "News"]

News: TypeAlias = tuple[str, str, Any]
"""Kind of event (``started`` or ``told``), the role, and the id of the started process or the message."""


class JobActor(RegistryActor):
    """Registry of addresses, and message broker: starts and messages to the launcher, permissions and signals to roles.

    A role is identified by its name. Each of its processes has an id, its `life`, which it chose. All calls run in one
    event loop. When Ray has restarted this actor, it repeats the calls that were waiting in it, so that only progress
    is lost.
    """

    def __init__(self, lease_seconds: float = LEASE_SECONDS) -> None:
        super().__init__(lease_seconds)
        self._changed = asyncio.Condition()
        self._news: list[News] = []
        self._allowed: dict[str, str] = {}
        self._listening: dict[str, str] = {}
        self._signals: dict[str, list[tuple[int, object]]] = {}
        self._is_over = False

    async def start(self, role: str, life: str) -> None:
        """Called by a role: returns when the launcher allows this process to begin."""
        async with self._changed:
            self._add(("started", role, life))
            await self._changed.wait_for(lambda: self._allowed.get(role) == life)

    async def allow(self, role: str, life: str) -> None:
        """Called by the launcher: allows a process to begin."""
        async with self._changed:
            self._allowed[role] = life
            self._changed.notify_all()

    async def tell(self, role: str, message: Mapping[str, Any]) -> None:
        """Called by a role: sends progress or a result to the launcher."""
        async with self._changed:
            self._add(("told", role, dict(message)))

    async def next_news(self) -> list[News]:
        """Called by the launcher: waits for events, and returns those since the last call."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_over or bool(self._news))
            news, self._news = self._news, []
            return news

    async def end(self) -> None:
        """Called by the launcher: ends its pending calls."""
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def send(self, role: str, number: int) -> None:
        """Called by the launcher: returns when a process of the role has received the signal."""
        async with self._changed:
            sent = (number, object())
            waiting = self._signals.setdefault(role, [])
            waiting.append(sent)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._is_over or sent not in waiting)

    async def next_signal(self, role: str, life: str) -> int | None:
        """Called by a role: waits for a signal; None when a newer process of the role has replaced this one."""
        async with self._changed:
            self._listening[role] = life
            self._changed.notify_all()
            waiting = self._signals.setdefault(role, [])
            await self._changed.wait_for(lambda: bool(waiting) or self._listening[role] != life)
            if self._listening[role] != life:
                return None
            number, _ = waiting.pop(0)
            self._changed.notify_all()
            return number

    def _add(self, news: News) -> None:
        self._news.append(news)
        self._changed.notify_all()
