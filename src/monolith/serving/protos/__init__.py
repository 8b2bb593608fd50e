"""Messages of serving, generated from protos/serving by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
