"""Summaries for TensorBoard: numbers, architecture weights and feature insight, and the event files that carry them.

Needs ``monolith-torch[tensorboard]``, imported on first use; TensorFlow is never loaded. Read `head` first.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
