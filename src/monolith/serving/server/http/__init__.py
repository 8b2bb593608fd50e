"""The HTTP front end: connections, messages, the REST paths, and JSON requests and answers."""

from __future__ import annotations

__all__: list[str] = []
