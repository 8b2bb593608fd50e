"""The actor of a job on Ray that its launcher and all its roles talk to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith.cluster.discovery.ray_actor import LEASE_SECONDS, RegistryActor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JobActor", "News"]

News: TypeAlias = tuple[str, str, Any]
"""What happened (``started`` or ``told``), the role, and the life that started or the message."""


class JobActor(RegistryActor):
    """Knows where everybody is, and passes on: starts and messages to the launcher, go-aheads and signals to roles.

    A role is known by its name; each of its processes is one life of it, with a name that it chose. All calls are of
    one event loop. When Ray has restarted this actor, it repeats the calls that were waiting in it, so that nothing is
    lost but progress.
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
        """Of a role: returns when the launcher lets this life begin."""
        async with self._changed:
            self._add(("started", role, life))
            await self._changed.wait_for(lambda: self._allowed.get(role) == life)

    async def allow(self, role: str, life: str) -> None:
        """Of the launcher: a life may begin."""
        async with self._changed:
            self._allowed[role] = life
            self._changed.notify_all()

    async def tell(self, role: str, message: Mapping[str, Any]) -> None:
        """Of a role: how far it is, and what came of it."""
        async with self._changed:
            self._add(("told", role, dict(message)))

    async def next_news(self) -> list[News]:
        """Of the launcher: what has happened since it asked last; waits until something has."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_over or bool(self._news))
            news, self._news = self._news, []
            return news

    async def end(self) -> None:
        """Of the launcher: whatever it waits for here, it waits no longer."""
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def send(self, role: str, number: int) -> None:
        """Of the launcher: returns when a life of the role has taken the signal."""
        async with self._changed:
            sent = (number, object())
            waiting = self._signals.setdefault(role, [])
            waiting.append(sent)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._is_over or sent not in waiting)

    async def next_signal(self, role: str, life: str) -> int | None:
        """Of a role: waits for a signal; None when another life of the role is there, and this one is not heard."""
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
