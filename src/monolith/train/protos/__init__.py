"""Messages of a model directory, made from protos/train by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
