"""Dense weights on parameter servers: layout over the servers, wire messages, the client and the server's shard."""

from __future__ import annotations

__all__: list[str] = []
