"""Exports of a training run: of a session, at each save, of a checkpoint, and in two stages."""

from __future__ import annotations

__all__: list[str] = []
