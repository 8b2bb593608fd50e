"""Messages of ByteDance Monolith's table files, generated from protos/tables by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
