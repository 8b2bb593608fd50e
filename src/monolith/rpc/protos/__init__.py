"""Messages of a parameter server's control service, generated from protos/ps by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
