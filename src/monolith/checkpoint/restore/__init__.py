"""Restoring a checkpoint: rules and aliases, adapted and partial restores, rows of other owners."""

from __future__ import annotations

__all__: list[str] = []
