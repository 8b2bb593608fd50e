"""Messages of the text files of a model directory, made from protos/checkpoint by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
