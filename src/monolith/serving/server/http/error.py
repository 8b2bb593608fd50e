"""Converts errors to HTTP responses."""

from __future__ import annotations

import json
import math

from monolith.errors import UnauthenticatedError
from monolith.serving.server.http.message import HttpResponse
from monolith.serving.server.statuses import refusal_of

__all__ = ["HttpError", "error_response"]


class HttpError(Exception):
    """An error with an HTTP status and a message.

    With `closes` the connection is closed: the rest of the request is unread.
    """

    def __init__(self, status: int, sentence: str, *, closes: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.closes = closes


def error_response(error: BaseException) -> HttpResponse:
    """Returns the response to an error: status, message, and when to retry."""
    if isinstance(error, HttpError):
        return HttpResponse(error.status, _told(error.sentence), closes=error.closes)
    refusal = refusal_of(error)
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(refusal.retry_after_seconds)))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(refusal.retry_after_seconds * 1e3)))
    if isinstance(error, UnauthenticatedError):
        headers.append((b"www-authenticate", b"Bearer"))
    return HttpResponse(refusal.http, _told(refusal.sentence), tuple(headers))


def _told(sentence: str) -> bytes:
    return json.dumps({"error": sentence}).encode()
