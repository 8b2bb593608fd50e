"""Messages of serving, made from protos/serving by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
