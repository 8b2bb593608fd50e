"""The joiner's events, generated from protos/joiner by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
