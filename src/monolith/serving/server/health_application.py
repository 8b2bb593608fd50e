"""Health and readiness over HTTP, for servers whose other endpoints are elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from monolith.serving.server.http.message import HttpResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.serving.server.http.message import HttpRequest, Reply

__all__ = ["HealthApplication"]


class HealthApplication:
    """Answers ``/healthz`` and ``/readyz`` like a model server.

    Args:
        why_not_ready: Returns why the server is not ready; None: it is ready.
        elsewhere: Error message for other paths.
    """

    def __init__(self, why_not_ready: Callable[[], str | None], *, elsewhere: str) -> None:
        self._why_not_ready = why_not_ready
        self._elsewhere = elsewhere

    def begin(self, request: HttpRequest) -> HttpResponse:
        """Answers one request."""
        status, told = self._respond(request)
        body = json.dumps({"status": "ok"} if told is None else {"error": told}).encode()
        return HttpResponse(status, body, closes=status not in (200, 503))  # a body may follow that is not read

    def answer(self, request: HttpRequest, reply: Reply) -> None:
        """Answers one request; the body is ignored."""
        reply(self.begin(request))

    def _respond(self, request: HttpRequest) -> tuple[int, str | None]:
        if request.path not in ("/healthz", "/readyz"):
            return 404, self._elsewhere
        if request.method not in ("GET", "HEAD"):
            return 405, f"{request.path[1:]} takes GET, got {request.method}"
        why = self._why_not_ready() if request.path == "/readyz" else None
        return (200, None) if why is None else (503, why)
