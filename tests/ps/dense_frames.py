"""Servers of dense weights behind real sockets, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from monolith import _core
from monolith.ps.dense.shard import DenseShard
from monolith.ps.dense.wire import DenseFrames


class SocketServers:
    """`num_ps` shards, each at a port of its own; a context manager."""

    def __init__(self, num_ps: int) -> None:
        self.gates = [_core.PushGate() for _ in range(num_ps)]
        self.shards = [DenseShard(index, num_ps, gate=gate) for index, gate in enumerate(self.gates)]
        self.servers = [
            _core.FrameServer(host="127.0.0.1", port=0, token="", num_threads=2, handler=shard) for shard in self.shards
        ]

    @property
    def num_ps(self) -> int:
        return len(self.servers)

    def require_state(self, owner: str) -> None:
        """They have it."""

    def uninitialized(self, owner: str) -> list[int]:
        raise NotImplementedError(owner)

    def set_initialized(self, owner: str) -> None:
        raise NotImplementedError(owner)

    def open_frames(self, words: bytes) -> DenseFrames:
        addresses = [("127.0.0.1", server.port) for server in self.servers]
        frames: DenseFrames = _core.FrameClient(addresses, [words] * self.num_ps)
        return frames

    @contextmanager
    def held(self) -> Iterator[None]:
        """The cluster's way in short: no worker is about to push."""
        for gate in self.gates:
            gate.hold(5.0)
        try:
            yield
        finally:
            for gate, server in zip(self.gates, self.servers, strict=True):
                gate.release()
                server.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.stop(0.0)
