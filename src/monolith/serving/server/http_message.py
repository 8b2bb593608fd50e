"""A request over HTTP and its answer, between a connection and the application that answers."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HttpApplication", "HttpRequest", "HttpResponse", "Reply", "encode_response"]


class HttpRequest:
    """What a client asks. The connection fills it in while it comes."""

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
        """Names in small letters."""
        self.client = client
        """Where it comes from."""
        self.body = b""
        self.deadline = math.inf
        """When the answer is due, on the monotonic clock: what is not answered then is answered 504."""
        self.is_complete = False
        """Whether the body is there."""
        self.is_answered = False
        self.is_kept_open = True
        """Whether the connection may be used again behind the answer."""
        self.parts: list[bytes] = []
        """Of a body that is not complete."""
        self.size = 0
        """Bytes of the body so far."""
        self.refusal: HttpResponse | None = None
        """The answer to one that cannot be read, which waits for the answers before it."""


class HttpResponse(NamedTuple):
    """What a client gets: JSON."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    closes: bool = False
    """Whether the connection ends, as the rest of the request is not read."""


Reply: TypeAlias = "Callable[[HttpResponse], None]"
"""Takes the answer of one request, once; any thread may call it, and it does not wait."""


class HttpApplication(Protocol):
    """What answers. The thread of the event loop calls it, and must not wait there."""

    def begin(self, request: HttpRequest) -> HttpResponse | None:
        """The head is there: the answer, if that is enough for one; None: the body is wanted, then `answer`."""
        ...

    def answer(self, request: HttpRequest, reply: Reply) -> None:
        """The body is there; `reply` is called now or later."""
        ...


_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_HEAD = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"


def encode_response(response: HttpResponse, *, is_kept_open: bool, has_body: bool = True) -> bytes:
    """The bytes of an answer.

    Args:
        response: The answer.
        is_kept_open: Whether the connection may be used again.
        has_body: Whether the body is sent; that of HEAD is not.
    """
    line = _STATUS_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status
    head = _HEAD % (line, len(response.body))
    for name, value in response.headers:
        head += b"%b: %b\r\n" % (name, value)
    end = b"\r\n" if is_kept_open else b"connection: close\r\n\r\n"
    return head + end + response.body if has_body else head + end
