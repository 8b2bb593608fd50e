"""HTTP request and response, exchanged between a connection and the application."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HttpApplication", "HttpRequest", "HttpResponse", "Reply", "encode_response"]


class HttpRequest:
    """An HTTP request. The connection fills it in as data arrives."""

    __slots__ = (
        "body",
        "client",
        "deadline",
        "headers",
        "is_answered",
        "is_complete",
        "is_kept_open",
        "method",
        "parts",
        "path",
        "refusal",
        "size",
    )

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], client: str | None = None) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        """Headers with lower-case names."""
        self.client = client
        """Address of the client."""
        self.body = b""
        self.deadline = math.inf
        """Deadline of the answer, on the monotonic clock; after it the client gets 504."""
        self.is_complete = False
        """Whether the body is complete."""
        self.is_answered = False
        self.is_kept_open = True
        """Whether the connection may be reused after the answer."""
        self.parts: list[bytes] = []
        """Received parts of an incomplete body."""
        self.size = 0
        """Bytes of the body so far."""
        self.refusal: HttpResponse | None = None
        """Response to an invalid request, sent after the answers to earlier requests."""


class HttpResponse(NamedTuple):
    """An HTTP response with a JSON body."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    closes: bool = False
    """Whether the connection is closed, since the rest of the request is unread."""


Reply: TypeAlias = "Callable[[HttpResponse], None]"
"""Callback for the response to one request, called once. Thread-safe; does not block."""


class HttpApplication(Protocol):
    """Application that answers requests. Called in the event loop thread; must not block."""

    def begin(self, request: HttpRequest) -> HttpResponse | None:
        """Checks the complete head; returns a response if the head suffices. None: the body is read for `answer`."""
        ...

    def answer(self, request: HttpRequest, reply: Reply) -> None:
        """Answers a request with a complete body; calls `reply` now or later."""
        ...


_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_HEAD = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"


def encode_response(response: HttpResponse, *, is_kept_open: bool, has_body: bool = True) -> bytes:
    """Encodes a response.

    Args:
        response: The response.
        is_kept_open: Whether the connection may be reused.
        has_body: Whether to send the body; False for HEAD.
    """
    line = _STATUS_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status
    head = _HEAD % (line, len(response.body))
    for name, value in response.headers:
        head += b"%b: %b\r\n" % (name, value)
    end = b"\r\n" if is_kept_open else b"connection: close\r\n\r\n"
    return head + end + response.body if has_body else head + end
