"""Media of a delta log: files, an object store, Kafka. `deltalog.transport` defines the interface."""

from __future__ import annotations

__all__: list[str] = []
