"""Exports of a training run: of a session, at each save, of a checkpoint, and in two stages."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
