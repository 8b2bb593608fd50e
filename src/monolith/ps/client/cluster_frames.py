"""A connection to every server of a cluster, which reconnects to servers that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.ps.client.cluster import PsCluster

__all__ = ["ClusterFrames"]


class ClusterFrames:
    """`_core.FrameClient` for one purpose. Thread-safe."""

    def __init__(self, cluster: PsCluster, words: bytes) -> None:
        self._cluster, self._words = cluster, words
        self._client = _core.FrameClient(
            cluster.frame_addresses,
            [words] * cluster.num_ps,
            token=cluster.token or "",
            lost_after_seconds=cluster.lost_after_seconds,
        )
        cluster.on_move(self._follow)

    def begin(
        self, server: int, kind: int, head: bytes, parts: Sequence[Any], into: Any | None, timeout_seconds: float
    ) -> _core.FrameCall:
        """Sends a call; a server answers the calls of a client in order."""
        return self._client.begin(server, kind, head, parts, into, timeout_seconds)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _follow(self, index: int) -> None:
        self._client.move(index, self._cluster.frame_address(index), self._words)
