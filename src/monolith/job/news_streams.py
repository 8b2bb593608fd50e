"""Streams that send state changes to members of a job; none of them holds a thread, or blocks the others."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monolith.job.wire import state_message
from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from monolith.job.state import JobState
    from monolith.rpc.handler import Send

__all__ = ["NewsStream", "NewsStreams"]

_UNHEARD_BYTES = 32 << 10
"""Maximum number of bytes sent to a member since its last heartbeat. A send beyond the buffer of its connection would
block: a suspended member would hold up the others. A connection always buffers 64 KiB."""


@dataclass(eq=False, slots=True)
class NewsStream:
    """Stream to one member. The lock of `NewsStreams` guards its counters."""

    token: int
    send: Send
    version: int = -1
    steps: int = -1
    unheard_bytes: int = 0
    is_over: bool = field(default=False)


class NewsStreams:
    """All streams of a coordinator. Thread-safe, but only one thread at a time may call `send`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the list and the counters of its streams
        self._streams: list[NewsStream] = []

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: NewsStream) -> None:
        """Adds a stream; the next `send` sends it the full state."""
        with self._lock:
            self._streams.append(stream)

    def remove(self, stream: NewsStream) -> bool:
        """Removes a stream that has ended; returns False if it was removed before."""
        with self._lock:
            stream.is_over = True
            if stream not in self._streams:
                return False
            self._streams.remove(stream)
            return True

    def heard(self, token: int) -> bool:
        """Records a heartbeat of a member; returns whether news for it was withheld."""
        with self._lock:
            own = [each for each in self._streams if each.token == token]
            late = any(each.unheard_bytes >= _UNHEARD_BYTES for each in own)
            for each in own:
                each.unheard_bytes = 0
            return late

    def send(self, state: JobState) -> None:
        """Sends each member the changes that it has not received yet."""
        everything = messages.News(state=state_message(state), steps=state.steps)
        figures = messages.News(steps=state.steps)
        for stream, news in self._due(state, everything, figures):
            stream.send(news)

    def close(self) -> None:
        """Ends all streams."""
        with self._lock:
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.send(None)

    def _due(
        self, state: JobState, everything: messages.News, figures: messages.News
    ) -> list[tuple[NewsStream, messages.News]]:
        due = []
        with self._lock:
            for stream in self._streams:
                if stream.unheard_bytes >= _UNHEARD_BYTES:
                    continue
                if stream.version != state.version:
                    due.append((stream, everything))
                elif stream.steps != state.steps:
                    due.append((stream, figures))
                else:
                    continue
                stream.version, stream.steps = state.version, state.steps
                stream.unheard_bytes += due[-1][1].ByteSize()
        return due
