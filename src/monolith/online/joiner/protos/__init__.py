"""The joiner's events, made from protos/joiner by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
