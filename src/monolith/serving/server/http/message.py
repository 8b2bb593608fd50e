"""HTTP request and response, exchanged between a connection and the application.

`why_refused` validates the head of a request against request smuggling; `error_response` converts errors.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from monolith.errors import UnauthenticatedError
from monolith.serving.server.request_core import refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(slots=True, eq=False)
class HttpRequest:
    """An HTTP request. The connection fills it in as data arrives."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    """Headers with lower-case names."""
    client: str | None = None
    """Address of the client."""
    route: Any = None
    """What the application made of the path in `begin`."""
    body: bytes = b""
    deadline: float = math.inf
    """Deadline of the answer, on the monotonic clock; after it the client gets 504."""
    is_complete: bool = False
    """Whether the body is complete."""
    is_answered: bool = False
    is_kept_open: bool = True
    """Whether the connection may be reused after the answer."""
    parts: list[bytes] = field(default_factory=list)
    """Received parts of an incomplete body."""
    size: int = 0
    """Bytes of the body so far."""
    refusal: HttpResponse | None = None
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

    def answer(self, request: HttpRequest, reply: Reply) -> None:
        """Answers a request with a complete body; calls `reply` now or later."""


_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_HEAD = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"


def encode_response(response: HttpResponse, *, is_kept_open: bool, has_body: bool = True) -> bytes:
    """Encodes a response."""
    line = _STATUS_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status
    head = _HEAD % (line, len(response.body))
    for name, value in response.headers:
        head += b"%b: %b\r\n" % (name, value)
    end = b"\r\n" if is_kept_open else b"connection: close\r\n\r\n"
    return head + end + response.body if has_body else head + end


SINGLE_HEADERS = frozenset(
    b"authorization content-encoding content-length content-type expect host origin transfer-encoding x-request-id"
    b" x-timeout-ms".split()
)
"""Headers that may occur only once: with two, one program uses the first and another the last."""
_LENGTH_DIGITS = 19


def why_refused(headers: Mapping[bytes, bytes], version: str) -> str | None:
    """Returns why a head is rejected; None if it is valid."""
    if version != "1.0" and b"host" not in headers:
        return "the head has no host line, which HTTP/1.1 requires"
    length = headers.get(b"content-length")
    if length is not None and not (length.isdigit() and len(length) <= _LENGTH_DIGITS):
        return f"content-length must be a number of at most {_LENGTH_DIGITS} digits, got {len(length)} characters"
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None and encoding.lower() != b"chunked":
        return f"transfer-encoding must be chunked, got {encoding[:80].decode('latin-1')!r}"
    return None


def content_length_of(headers: Mapping[bytes, bytes]) -> int:
    """Returns the content length, 0 if missing. REQUIRES: the head is valid."""
    return int(headers.get(b"content-length", b"0"))


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
        return HttpResponse(error.status, _error_body(error.sentence), closes=error.closes)
    refusal = refusal_of(error)
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(refusal.retry_after_seconds)))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(refusal.retry_after_seconds * 1e3)))
    if isinstance(error, UnauthenticatedError):
        headers.append((b"www-authenticate", b"Bearer"))
    return HttpResponse(refusal.http, _error_body(refusal.sentence), tuple(headers))


def _error_body(sentence: str) -> bytes:
    return json.dumps({"error": sentence}).encode()
