"""The client of parameter servers: `PsCluster` holds the connections, `PsStore` implements the store interface."""

from __future__ import annotations

__all__: list[str] = []
