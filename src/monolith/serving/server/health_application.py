"""Health and readiness over HTTP, for servers that answer everything else elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["HealthApplication"]


class HealthApplication:
    """An ASGI application with ``/healthz`` and ``/readyz``, as a server of models has them.

    Args:
        why_not_ready: Why nothing is to be asked here; None: it is ready.
        elsewhere: A sentence for who asks for anything else.
    """

    def __init__(self, why_not_ready: Callable[[], str | None], *, elsewhere: str) -> None:
        self._why_not_ready = why_not_ready
        self._elsewhere = elsewhere

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],  # noqa: ARG002 - what a client sends is not read
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answers one request."""
        status, told = self._respond(scope)
        body = json.dumps({"status": "ok"} if told is None else {"error": told}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status not in (200, 503):
            headers.append((b"connection", b"close"))  # a body may follow, which nobody reads
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _respond(self, scope: Mapping[str, Any]) -> tuple[int, str | None]:
        if scope["path"] not in ("/healthz", "/readyz"):
            return 404, self._elsewhere
        if scope["method"] not in ("GET", "HEAD"):
            return 405, f"{scope['path'][1:]} takes GET, got {scope['method']}"
        why = self._why_not_ready() if scope["path"] == "/readyz" else None
        return (200, None) if why is None else (503, why)
