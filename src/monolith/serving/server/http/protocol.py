"""HTTP connections on httptools, with limits for many, slow and pipelining clients.

There is neither a task nor a timer per request. The thread that has the answer writes it to the socket: a model thread
does so without waking the event loop, which is used only if the socket does not accept all bytes, for TLS, and for work
after the answer.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import urllib.parse
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import httptools

from monolith.serving.server.http.message import (
    SINGLE_HEADERS,
    HttpError,
    HttpRequest,
    content_length_of,
    encode_response,
    error_response,
    why_refused,
)
from monolith.serving.server.request_core import deadline_error

if TYPE_CHECKING:
    from monolith.serving.server.config import LimitsConfig
    from monolith.serving.server.http.message import HttpApplication, HttpResponse

HEAD_BYTES = 64 << 10
"""Maximum size of the head of a request, including the path."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
PIECE_BYTES = 4 << 10
"""Bytes that are parsed at a time, unless they are a body. Bounds the number of parsed requests of a pipelining client;
the rest stays bytes."""


class HttpConnection(asyncio.Protocol):
    """An HTTP connection. Called by the event loop; `reply` may be called by any thread.

    It adds itself to `connections`, the oldest first, and removes itself. Beyond `most_connections`, the oldest one
    without a request in progress is closed.
    """

    def __init__(
        self,
        application: HttpApplication,
        limits: LimitsConfig,
        connections: dict[HttpConnection, None],
        most_connections: int,
    ) -> None:
        self._application = application
        self._limits = limits
        self._connections = connections
        self._most_connections = most_connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # data after a last request is no error
        self._transport: asyncio.Transport
        self._client: str | None = None
        self._lock = threading.Lock()
        """Guards pending answers and writing: while a thread holds it and `_socket` is set, the socket is open."""
        self._socket = -1
        """Descriptor for answers; -1: written by the event loop, for TLS, or closed."""
        self._current: HttpRequest | None = None
        """Request that is answered next."""
        self._line: deque[HttpRequest] = deque()
        """Further requests of a pipelining client."""
        self._coming: HttpRequest | None = None
        """Request whose body is being read."""
        self._unparsed = b""
        """Bytes received after waiting requests."""
        self._body_bytes = 0
        """Remaining bytes of the body of `_coming`, if its length is given."""
        self._is_refused = False
        """Whether the last request was rejected: nothing after it is parsed."""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._is_in_head = True
        self._is_ending = False
        self._is_writing_paused = False
        self._since = 0.0
        """Start of the current wait."""
        self._timer: asyncio.TimerHandle
        self._write_timer: asyncio.TimerHandle | None = None

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for a head, or closes a connection beyond the limit."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - it is TCP
        self._transport = transport
        self._connections[self] = None
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if peer else None
        if transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket").fileno()
        self._since = self._loop.time()
        self._timer = self._loop.call_at(self._since + self._limits.head_seconds, self._look)
        if len(self._connections) > self._most_connections:
            oldest = next((connection for connection in self._connections if connection.is_idle), self)
            if oldest is self:
                self._refuse(503, f"more than {self._most_connections} connections are open")
            else:
                oldest.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """Discards pending requests; the socket is closed after this returns."""
        with self._lock:
            self._socket = -1
            self._current = None
        self._line.clear()
        self._connections.pop(self, None)
        self._timer.cancel()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Parses bytes, unless the connection is closing."""
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._parse()

    def _parse(self) -> None:
        """Parses received bytes, until a request has to wait for the answer to another."""
        while self._unparsed and not self._line and not self._is_refused and not self._transport.is_closing():
            size = max(PIECE_BYTES, self._body_bytes)
            data, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                pass  # answered like any other request, then closed
            except httptools.HttpParserError as error:
                # An error of a callback is the context of the parser's error.
                if isinstance(why := error.__context__, HttpError):
                    self._refuse_last(why.status, why.sentence)
                else:
                    self._refuse_last(400, f"the request is no HTTP/1.1, or its head is over {HEAD_BYTES} bytes")

    def pause_writing(self) -> None:
        """Pauses reading: the client reads more slowly than it sends requests."""
        self._is_writing_paused = True
        self._transport.pause_reading()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Resumes reading."""
        self._is_writing_paused = False
        self._go_on()

    def shut_down(self) -> None:
        """Closes the connection after the pending answer."""
        with self._lock:
            self._is_ending = True
            is_idle = self._current is None
        if is_idle:
            self._transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether the connection waits for the head of its first or next request."""
        return self._current is None and not self._transport.is_closing()

    def abort(self) -> None:
        """Closes the connection immediately."""
        self._transport.abort()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Starts a request and the timeout of its head."""
        self._url = b""
        self._headers = {}
        self._head_bytes = 0
        if not self._is_in_head:
            self._is_in_head = True
            if self._current is None:
                self._since = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """Adds a part of the path."""
        self._count_head(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header."""
        self._count_head(len(name) + len(value))
        name = name.lower()
        if name in self._headers and name in SINGLE_HEADERS:
            raise HttpError(400, f"the head has {name.decode('latin-1')} twice; send it once")
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Validates the complete head, and starts or queues the request."""
        self._is_in_head = False
        parser = self._parser
        refused = why_refused(self._headers, parser.get_http_version())
        if refused is not None:
            raise HttpError(400, refused)
        request = HttpRequest(parser.get_method().decode(), _path_of(self._url), self._headers, self._client)
        request.is_kept_open = parser.should_keep_alive() and not parser.should_upgrade()
        self._coming = request
        self._body_bytes = content_length_of(self._headers)
        with self._lock:
            waits = self._current is not None or bool(self._line)
            if waits:
                self._line.append(request)
            else:
                self._current = request
        if waits:
            self._transport.pause_reading()
        else:
            self._begin(request)

    def on_body(self, body: bytes) -> None:
        """Adds a part of the body."""
        request = self._coming
        self._body_bytes = max(0, self._body_bytes - len(body))
        if request is None:
            return  # already answered
        request.size += len(body)
        request.parts.append(body)
        if request.size > self._limits.body_bytes:
            raise HttpError(413, f"a body may have {self._limits.body_bytes} bytes, got more")

    def on_message_complete(self) -> None:
        """Completes the request, and answers it if it is the current one."""
        request, self._coming = self._coming, None
        self._body_bytes = 0
        if request is None:
            return
        request.body = request.parts[0] if len(request.parts) == 1 else b"".join(request.parts)
        request.parts = []
        request.is_complete = True
        if request is self._current:
            self._answer(request)

    # Answering

    def _begin(self, request: HttpRequest) -> None:
        """Starts to answer a request whose body may still be incomplete."""
        self._since = time.monotonic()
        try:
            response = request.refusal or self._application.begin(request) or self._refused_size(request)
        except Exception as error:  # noqa: BLE001 - any error becomes a response
            response = error_response(error)
        if response is not None:
            if self._coming is request:
                self._coming = None
            self.reply(request, response)
        elif not request.is_complete:
            if request.headers.get(b"expect", b"").lower() == b"100-continue":
                self._transport.write(_CONTINUE)
            self._look_by(self._since + self._limits.body_seconds)

    def _refused_size(self, request: HttpRequest) -> HttpResponse | None:
        length = content_length_of(request.headers)
        if length <= self._limits.body_bytes:
            return None
        raise HttpError(413, f"a body may have {self._limits.body_bytes} bytes, got {length}", closes=True)

    def _answer(self, request: HttpRequest) -> None:
        self._look_by(request.deadline)
        try:
            self._application.answer(request, partial(self.reply, request))
        except Exception as error:  # noqa: BLE001 - any error becomes a response
            self.reply(request, error_response(error))

    def reply(self, request: HttpRequest, response: HttpResponse) -> None:
        """Writes an answer, if the request still waits for one. Any thread may call it."""
        is_kept_open = request.is_kept_open and not (response.closes or self._is_ending)
        data = encode_response(response, is_kept_open=is_kept_open, has_body=request.method != "HEAD")
        with self._lock:
            if self._current is not request or request.is_answered:
                return  # timed out, or the client has disconnected
            request.is_answered = True
            written = self._write_now(data) if is_kept_open else 0
            self._since = time.monotonic()
            if written == len(data) and not self._line and not self._is_ending:
                self._current = None
                return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._finish, data[written:], is_kept_open)

    def _write_now(self, data: bytes) -> int:
        """Writes to the socket; returns the number of bytes accepted. REQUIRES: the lock is held."""
        if self._socket < 0 or self._transport.get_write_buffer_size():
            return 0
        try:
            return os.write(self._socket, data)
        except OSError:  # full, or broken, which the event loop detects
            return 0

    def _finish(self, data: bytes, is_kept_open: bool) -> None:
        """Completes an answer in the event loop.

        The request stays current until then, so that answers keep their order.
        """
        if self._transport.is_closing():
            return
        if data:
            self._transport.write(data)
            self._expect_reading()
        with self._lock:
            self._current = None
        if is_kept_open and not self._is_ending:
            self._go_on()
        else:
            self._transport.close()

    def _go_on(self) -> None:
        """Starts the next queued request."""
        if self._is_writing_paused or self._current is not None or self._transport.is_closing():
            return
        if self._line:
            with self._lock:
                self._current = request = self._line.popleft()
            self._begin(request)
            if request.is_complete and not request.is_answered:
                self._answer(request)
        self._parse()
        if not self._line and not self._is_refused:
            self._transport.resume_reading()

    # Limits

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise ValueError("head too large")

    def _look_by(self, due: float) -> None:
        """Schedules a timeout check. Most requests set no timer: an earlier one is already set."""
        if due < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        now, limits, request = self._loop.time(), self._limits, self._current
        if request is None or request.is_answered:
            due = self._since + limits.head_seconds
        else:
            due = request.deadline if request.is_complete else self._since + limits.body_seconds
        if self._transport.is_closing():
            return
        if now < due:
            self._timer = self._loop.call_at(min(due, now + limits.head_seconds), self._look)
        elif request is None and not self._is_in_head:
            self._transport.close()  # idle between two requests
        elif request is None:
            self._refuse(408, f"the head did not come within {limits.head_seconds:g} s")
        elif not request.is_complete:
            self._refuse(408, f"the body did not come within {limits.body_seconds:g} s")
        else:
            self._timer = self._loop.call_at(now + limits.head_seconds, self._look)
            self.reply(request, error_response(deadline_error(max(0.0, request.deadline - self._since))))

    def _expect_reading(self) -> None:
        if self._write_timer is None and self._transport.get_write_buffer_size() > 0:
            self._write_timer = self._loop.call_later(self._limits.write_seconds, self._drop_unread)

    def _drop_unread(self) -> None:
        self._write_timer = None
        if self._transport.get_write_buffer_size() > 0:
            self._transport.abort()

    def _refuse(self, status: int, sentence: str) -> None:
        """Sends an error and closes the connection in any state."""
        if self._transport.is_closing():
            return
        with self._lock:
            self._current = self._coming = None
            self._line.clear()
        response = error_response(HttpError(status, sentence))
        self._transport.write(encode_response(response, is_kept_open=False))
        self._transport.close()
        self._expect_reading()

    def _refuse_last(self, status: int, sentence: str) -> None:
        """Rejects the last request after the answers to earlier ones; nothing more is read."""
        refused = self._coming
        with self._lock:
            is_first = self._current is None or self._current is refused
        if is_first:
            self._refuse(status, sentence)
            return
        self._is_refused, self._coming, self._unparsed = True, None, b""
        self._transport.pause_reading()
        if refused is None:
            refused = HttpRequest("", "", {})
            with self._lock:
                self._line.append(refused)
        refused.parts = []
        refused.is_kept_open = False
        refused.refusal = error_response(HttpError(status, sentence))


def _path_of(url: bytes) -> str:
    if b"?" in url or b"#" in url or not url.startswith(b"/"):
        url = httptools.parse_url(url).path or b""
    path = url.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path
