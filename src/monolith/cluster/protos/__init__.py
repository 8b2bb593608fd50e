"""Messages of the scheduler, made from protos/cluster by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
