"""Servers of dense weights in this process: the same calls and bytes, carried by functions instead of sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from monolith.errors import UnavailableError
from monolith.ps.dense.shard import DenseShard
from monolith.ps.dense.wire import WORDS, Kind


class OpenGate:
    """Lets pushes pass while it is open; counts those inside."""

    def __init__(self) -> None:
        self.is_open = True
        self.inside = 0
        self.turned_away = 0

    def enter(self, worker: int, seq: int, applied: int) -> bool:
        self.inside += self.is_open
        self.turned_away += not self.is_open
        return self.is_open

    def leave(self) -> None:
        self.inside -= 1

    def hold(self, seconds: float) -> bool:
        self.is_open = False
        return self.inside == 0

    def allow(self, limits: dict[int, int]) -> None:
        raise NotImplementedError

    def release(self) -> None:
        self.is_open = True


class FakeCall:
    def __init__(self, send: Callable[[], tuple[bytes, bytes] | None]) -> None:
        self._send = send
        self._answer: tuple[bytes, bytes] | BaseException | None = None
        self._try()

    def _try(self) -> None:
        try:
            self._answer = self._send()
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self._answer = error

    @property
    def done(self) -> bool:
        if self._answer is None:
            self._try()
        return self._answer is not None

    def wait(self) -> tuple[bytes, bytes]:
        if not self.done:
            raise UnavailableError("a test waits for a call that nobody lets pass")
        assert self._answer is not None
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class FakeFrames:
    def __init__(self, servers: FakeServers) -> None:
        self._servers = servers
        self.is_closed = False

    def begin(
        self, server: int, kind: int, head: bytes, parts: Sequence[Any], into: Any | None, timeout_seconds: float
    ) -> FakeCall:
        assert not self.is_closed
        assert timeout_seconds > 0
        body = b"".join(bytes(part) for part in parts)
        self._servers.said.append((server, Kind(kind), head, body))
        return FakeCall(lambda: self._servers.carry(server, kind, head, body, into))

    def close(self) -> None:
        self.is_closed = True


class FakeServers:
    """`num_ps` shards; `repeat` carries every call twice, as after a broken connection."""

    def __init__(self, num_ps: int, *, repeat: bool = False, modules: Sequence[str] = ()) -> None:
        self.gates = [OpenGate() for _ in range(num_ps)]
        self.shards = [DenseShard(index, num_ps, gate=gate, modules=modules) for index, gate in enumerate(self.gates)]
        self.said: list[tuple[int, Kind, bytes, bytes]] = []
        self._repeat = repeat

    @property
    def num_ps(self) -> int:
        return len(self.shards)

    def require_state(self, owner: str) -> None:
        """They have it."""

    def uninitialized(self, owner: str) -> list[int]:
        raise NotImplementedError(owner)

    def set_initialized(self, owner: str) -> None:
        raise NotImplementedError(owner)

    def open_frames(self, words: bytes) -> FakeFrames:
        assert all(shard.greet(words, "a test") == b"" for shard in self.shards)
        return FakeFrames(self)

    def carry(self, server: int, kind: int, head: bytes, body: bytes, into: Any | None) -> tuple[bytes, bytes] | None:
        if self._repeat:
            self._carry_once(server, kind, head, body)
        answer = self._carry_once(server, kind, head, body)
        if answer is None or into is None:
            return answer
        assert into.nbytes == len(answer[1])
        np.frombuffer(into, dtype=np.uint8)[:] = np.frombuffer(answer[1], dtype=np.uint8)
        return answer[0], b""

    def _carry_once(self, server: int, kind: int, head: bytes, body: bytes) -> tuple[bytes, bytes] | None:
        memory = bytearray(body)
        answer = self.shards[server].call(WORDS, kind, head, memoryview(memory).toreadonly())
        memory[:] = b"\xff" * len(memory)  # what a server receives is overwritten after the call
        return None if answer is None else (answer[0], b"".join(bytes(part) for part in answer[1]))
