"""HTTP connections that end: uvicorn's protocol with limits for clients that are many, slow or talkative."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from monolith.serving.server.config import Limits

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["LimitedProtocol", "protocol_with"]

HEAD_BYTES = 64 << 10
"""Largest head of a request, its path included."""


class LimitedProtocol(HttpToolsProtocol):
    """A connection; the event loop calls it."""

    limits: ClassVar[Limits] = Limits()
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begins to wait for a head, or sends away one connection too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(b"503 Service Unavailable", f"more than {self.limits.connections} connections are open")
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets what it waits for."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_timers()

    def data_received(self, data: bytes) -> None:
        """Hands bytes on, unless the connection is about to end."""
        if not self.transport.is_closing():
            super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins: its head is due."""
        super().on_message_begin()
        self._head_bytes = 0
        if self._head_timer is None:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        """A part of the path."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head."""
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """The answer is written; it has to be read, too."""
        super().on_response_complete()
        self._expect_reading()

    def pause_writing(self) -> None:
        """The client reads slower than it asks."""
        super().pause_writing()
        self._expect_reading()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told so."""
        self._refuse(b"400 Bad Request", f"the request is no HTTP/1.1, or its head is over {HEAD_BYTES} bytes: {msg}")

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self._end_slow)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise ValueError("head too large")

    def _end_slow(self) -> None:
        self._head_timer = None
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._expect_head()  # it is us who do not read: the request before it is not answered yet
            return
        self._refuse(b"408 Request Timeout", f"the head did not come within {self.limits.head_seconds:g} s")

    def _expect_reading(self) -> None:
        if self._write_timer is None and self.transport.get_write_buffer_size() > 0:
            self._write_timer = self.loop.call_later(self.limits.write_seconds, self._drop_unread)

    def _drop_unread(self) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()

    def _refuse(self, status: bytes, sentence: str) -> None:
        if self.transport.is_closing():
            return
        self._stop_timers()
        body = json.dumps({"error": sentence}).encode()
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()
        self._expect_reading()

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None


def protocol_with(limits: Limits) -> type[LimitedProtocol]:
    """The protocol of a server with these limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
