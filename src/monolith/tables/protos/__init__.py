"""Messages of the original's files of tables, made from protos/tables by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
