"""Restoring a checkpoint: rules and aliases, adapted and partial restores, rows of other owners."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
